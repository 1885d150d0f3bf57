"""Questions beyond a table of samplers: knobs, exploration, cost, a prefix. Samplers to cells, or to measured units."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.harness import Cell, Now, Run, Watch
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import constraint_of, load_task, spread

if TYPE_CHECKING:
    import torch

    from slalom.api import SteerableModel
    from slalom.constraints.constraint import Constraint
    from slalom.decoding.run import Report
    from slalom.decoding.sampler import Preset

TASK = "sentiment"  # what the paper's studies are done on
LENGTH = 20
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0)  # on the weight
TAUS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TOP_KS = (10, 50, 100, 250, 500, 1000)


class Study(NamedTuple):
    """What a study asks, and of which samplers unless others are named."""

    what: str
    samplers: tuple[str, ...]


STUDIES = {
    "ablation": Study("DAB's weight, proposal temperature and top-k (Figure 4)", ("dab",)),
    "exploration": Study(
        "what changes from draft to draft (Figure 3)", ("dab", "dab:paper", "bolt", "bolt-normalised")
    ),
    "efficiency": Study("tokens per second and the cost of a gradient (Tables 1 and 3)", ("dab", "dab:paper", "bolt")),
    "prompted": Study("keywords with and without the paper's prefix (Table 8)", ("dab", "bolt")),
}


class Size(NamedTuple):
    """How much of a study to do."""

    prompts: int
    rows: int  # texts of a prompt, decoded together
    steps: int


SIZES = {"quick": Size(2, 4, 10), "standard": Size(1, 4, 50), "paper": Size(15, 20, 50)}


def ablation_cells(sampler: str, preset: str, model: str) -> list[Cell]:
    """The sampler as it is, and with one knob at a time set otherwise."""
    from slalom.constraints import Custom
    from slalom.decoding.presets import preset_for

    anything = Custom(lambda prompt, text: True, "anything")  # presets are the same for all that is no keyword
    base = preset_for(preset, anything, model, sampler=sampler).sampler
    for knob in ("weight", "tau", "top_k"):
        if not hasattr(base, knob):
            raise SlalomError(f"the sampler {sampler} has no knob {knob}; the ablation is of dab")
    weight: float = base.weight  # type: ignore[attr-defined]
    grid: dict[str, list[Any]] = {
        "weight": [float(f"{factor * weight:.4g}") for factor in FACTORS],
        "tau": list(TAUS),
        "top_k": list(TOP_KS),
    }
    plain = Cell(TASK, sampler, preset)
    others = [
        plain._replace(knobs=((knob, value),))
        for knob, values in grid.items()
        for value in values
        if value != getattr(base, knob)
    ]
    return [plain, *others]


def knob_value(cell: Cell, knob: str, records: list[Record]) -> float:
    """What a knob was set to in a cell's texts."""
    return float(next(record["knobs"][knob] for record in records if record["cell"] == cell.id))


# Studies that measure the sampling itself


Measure = Callable[["SteerableModel", "Constraint", str, "Preset", Size], Record]


def measure_units(run: Run, lm: Callable[[], SteerableModel], watch: Watch) -> None:
    """One record for every sampler and prompt into units.jsonl, those not there yet; in order at the end."""
    from slalom.decoding.presets import preset_for

    size = study_size(run.settings.preset)
    path = run.folder / "units.jsonl"
    task = load_task(TASK)
    prompts = spread(task.prompts, size.prompts)
    wanted = [(cell, prompt) for cell in run.settings.cells for prompt in prompts]
    done = {(unit["cell"], unit["prompt"]): unit for unit in store.read(path)}
    loaded, wish = None, None
    started, before = time.perf_counter(), len(done)
    for number, (cell, prompt) in enumerate(wanted):
        if (cell.id, prompt) in done or cell.id in run.skipped:
            continue
        measured = len(done) - before
        left = (time.perf_counter() - started) / measured * (len(wanted) - number) if measured else None
        watch(Now(f"{run.settings.study}: {cell.label}", number, len(wanted), left))
        loaded = loaded or lm()
        wish = wish or constraint_of(task.items(task.size(run.settings.preset))[0].parts)
        try:
            settings = preset_for(cell.preset, wish, loaded.name, sampler=cell.sampler)
            settings = replace(settings, steps=size.steps, stop=None)
            found = MEASURES[str(run.settings.study)](loaded, wish, prompt, settings, size)
        except SlalomError as error:
            run.skipped[cell.id] = str(error)
            run.save()
            continue
        unit = {"cell": cell.id, "prompt": prompt, "engine": loaded.engine.name, "model": loaded.name, **found}
        store.append(path, [unit])
        done[cell.id, prompt] = unit
    if not done:
        raise SlalomError(next(iter(run.skipped.values()), "nothing to measure"))
    in_order = [done[cell.id, prompt] for cell, prompt in wanted if (cell.id, prompt) in done]
    if store.read(path) != in_order:
        store.rewrite(path, in_order)


def study_size(preset: str) -> Size:
    """A preset of the studies by name."""
    if preset not in SIZES:
        raise SlalomError(f"unknown preset {preset!r}; choose from {', '.join(SIZES)}")
    return SIZES[preset]


def explore(lm: SteerableModel, wish: Constraint, prompt: str, settings: Preset, size: Size) -> Record:
    """Drafts as they come: hops and perplexity of every step, and how many tokens each position has seen.

    A hop is a position whose token differs from the draft before; perplexity is under the LM that is steered.
    """
    from slalom.api import Row, steer_rows
    from slalom.backbone.rollout import Limits

    seen: list[torch.Tensor] = []  # of every step, [rows, n]
    perplexity: list[float] = []
    score: list[float] = []

    def watch(now: Report) -> None:
        seen.append(now.seen.draft.tokens.cpu())
        perplexity.append(now.seen.draft.perplexity.mean().item())
        score.append(now.seen.judgement.score.mean().item())

    rows = [Row(lm.encode(prompt, LENGTH), seed) for seed in range(size.rows)]
    steer_rows(lm, rows, wish, Limits(LENGTH), settings, (watch,))
    hops = [(new != old).sum(-1).float().mean().item() for old, new in pairwise(seen)]
    different = [len({int(tokens[row, i]) for tokens in seen}) for row in range(size.rows) for i in range(LENGTH)]
    return {
        "hops": [_short(value) for value in hops],
        "unique": _short(sum(different) / len(different)),
        "perplexity": [_short(value) for value in perplexity],
        "score": [_short(value) for value in score],
    }


def cost(lm: SteerableModel, wish: Constraint, prompt: str, settings: Preset, size: Size) -> Record:
    """The time of all steps, the paper's n · s / t, and what differentiating takes in one step."""
    from slalom.api import Row, steer_rows
    from slalom.backbone.rollout import Limits

    rows = [Row(lm.encode(prompt, LENGTH), seed) for seed in range(size.rows)]
    backward = profile_step(lm, wish, rows, settings)  # first, so that it warms up what is timed
    finished, seconds = steer_rows(lm, rows, wish, Limits(LENGTH), settings)
    steps = max(one.steps for one in finished)
    return {
        "seconds": round(seconds, 4),
        "steps": steps,
        "rows": size.rows,
        "tokens_per_second": _short(LENGTH * steps / seconds),
        "backward": backward,
    }


def profile_step(lm: SteerableModel, wish: Constraint, rows: list[Any], settings: Preset) -> dict[str, Any]:
    """Calls and seconds of each operation's backward pass in a sampler's first step, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from slalom.backbone.rollout import Limits
    from slalom.decoding.drawing import Drawing
    from slalom.decoding.randomness import Rng
    from slalom.decoding.sampler import Judge, Problem

    rng = Rng.from_seeds([row.seed for row in rows], lm.device)
    wish.check(lm.vocabulary, LENGTH)
    drawing = Drawing(settings.temperature, settings.top_p, rng.fold(0)) if settings.temperature else None
    owners = torch.zeros(len(rows), dtype=torch.long, device=lm.device)
    limits = Limits(LENGTH, forbidden=wish.forbids(lm.vocabulary))
    problem = Problem(lm, lm.read([rows[0].prompt]), owners, limits, wish, Judge(wish), drawing)
    state = settings.sampler.init(problem, rng.fold(1))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler:
        settings.sampler.step(problem, state, rng.fold(2))
    found: dict[str, Any] = {}
    for event in profiler.key_averages():
        if re.fullmatch(r"\w+Backward\d*", event.key):
            took = max(event.cpu_time_total, getattr(event, "device_time_total", 0.0))
            found[event.key] = {"calls": event.count, "seconds": _short(took / 1e6)}
    return dict(sorted(found.items()))


MEASURES: dict[str, Measure] = {"exploration": explore, "efficiency": cost}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
