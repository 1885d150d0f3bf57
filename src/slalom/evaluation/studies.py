"""The paper's studies of knobs, exploration, cost and a prefix: samplers to cells, or to lines of units.jsonl."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.cells import TOLD, Cell, SamplerName, task_cells
from slalom.evaluation.progress import OnProgress, Progress, time_left
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import Task, constraint_of, evenly_spaced, load_task

if TYPE_CHECKING:
    from slalom.api import SteerableModel
    from slalom.constraints.constraint import Constraint
    from slalom.decoding.objective import Seen
    from slalom.decoding.sampler import Preset, Request
    from slalom.decoding.scheduler import RowReport

TASK = "sentiment"  # what the paper's studies are done on
LENGTH = 20
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0)  # on the weight
TAUS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
TOP_KS = (10, 50, 100, 250, 500, 1000)


class Study(NamedTuple):
    """What a study looks at, and which samplers it takes unless others are named."""

    description: str
    samplers: tuple[str, ...]


STUDIES = {
    "ablation": Study("DAB's weight, proposal temperature and top-k (Figure 4)", ("dab",)),
    "exploration": Study(
        "what changes from draft to draft (Figure 3)", ("dab", "dab:paper", "bolt", "bolt-normalised")
    ),
    "efficiency": Study("tokens per second and the cost of a gradient (Tables 1 and 3)", ("dab", "dab:paper", "bolt")),
    "prompted": Study("keywords with and without the paper's prefix (Table 8)", ("dab", "bolt")),
}


class StudySize(NamedTuple):
    """How much of a study to do."""

    prompts: int
    rows: int  # texts of a prompt, decoded together
    steps: int


SIZES = {
    "quick": StudySize(2, 4, 10),
    "standard": StudySize(1, 4, 50),
    "ten-prompts": StudySize(10, 4, 50),
    "batch-1": StudySize(3, 1, 10),
    "batch-20": StudySize(3, 20, 10),
    "paper": StudySize(15, 20, 50),
}


def study_cells(study: str, samplers: list[SamplerName], model: str) -> tuple[list[Cell], list[Task]]:
    """The cells of a study, and its tasks."""
    if study == "prompted":
        task = load_task("keywords")
        return task_cells([task], samplers, [1.0], (False, True)), [task]
    if any(name.told for name in samplers):
        raise SlalomError(f"{study} tells the LM no wish; leave {TOLD} out")
    if study == "ablation":
        if len(samplers) > 1:
            raise SlalomError("ablation is of one sampler; name dab or dab:paper, each in a folder of its own")
        return ablation_cells(samplers[0].sampler, samplers[0].preset, model), [load_task(TASK)]
    return task_cells([load_task(TASK)], samplers, [1.0]), [load_task(TASK)]


def ablation_cells(sampler: str, preset: str, model: str) -> list[Cell]:
    """The sampler as it is, and with one knob at a time changed."""
    from slalom.constraints.custom import ANYTHING
    from slalom.decoding.presets import preset_for

    base = preset_for(preset, ANYTHING, model, sampler=sampler).sampler  # the same for all constraints but keywords
    for knob in ("weight", "tau", "top_k"):
        if not hasattr(base, knob):
            raise SlalomError(f"the sampler {sampler} has no knob {knob}; the ablation is of dab")
    weight: float = base.weight  # type: ignore[attr-defined]
    grid: dict[str, list[Any]] = {
        "weight": [float(f"{factor * weight:.4g}") for factor in FACTORS],
        "tau": list(TAUS),
        "top_k": list(TOP_KS),
    }
    unchanged = Cell(TASK, sampler, preset)
    changed = [
        unchanged._replace(knobs=((knob, value),))
        for knob, values in grid.items()
        for value in values
        if value != getattr(base, knob)
    ]
    return [unchanged, *changed]


def knob_value(cell: Cell, knob: str, records: list[Record]) -> float:
    """What a knob was set to in a cell's texts."""
    return float(next(record["knobs"][knob] for record in records if record["cell"] == cell.id))


# Studies that measure the sampling itself. A unit is one sampler on one prompt.


UnitMeasure = Callable[["SteerableModel", "Constraint", str, "Preset", StudySize, int], Record]


def wanted_units(settings: RunSettings) -> list[tuple[Cell, str]]:
    """Every sampler with every prompt."""
    prompts = evenly_spaced(load_task(TASK).prompts, study_size(settings.preset).prompts)
    return [(cell, prompt) for cell in settings.cells for prompt in prompts]


def measure_units(run: Run, load_lm: Callable[[], SteerableModel], on_progress: OnProgress) -> None:
    """Measure every unit that is not in units.jsonl yet; then put the file into order."""
    from slalom.decoding.presets import preset_for

    size = study_size(run.settings.preset)
    wanted = wanted_units(run.settings)
    done = {(unit["cell"], unit["prompt"]): unit for unit in store.read(run.units)}
    lm, constraint = None, None
    started, before = time.perf_counter(), len(done)
    for number, (cell, prompt) in enumerate(wanted):
        if (cell.id, prompt) in done or cell.id in run.skipped:
            continue
        seconds_left = time_left(started, len(done) - before, len(wanted) - number)
        on_progress(Progress(f"{run.settings.study}: {cell.label}", number, len(wanted), seconds_left))
        lm = lm or load_lm()
        constraint = constraint or constraint_of(load_task(TASK).wishes[0].parts)
        try:
            settings = preset_for(cell.preset, constraint, lm.name, sampler=cell.sampler)
            settings = replace(settings, steps=size.steps, stop=None)
            measure = UNIT_MEASURES[str(run.settings.study)]
            measured = measure(lm, constraint, prompt, settings, size, run.settings.seed)
        except SlalomError as error:
            run.skipped[cell.id] = str(error)
            run.save()
            continue
        unit = {"cell": cell.id, "prompt": prompt, "engine": lm.engine.name, "model": lm.name, **measured}
        store.append(run.units, [unit])
        done[cell.id, prompt] = unit
    if not done:
        raise SlalomError(next(iter(run.skipped.values()), "nothing to measure"))
    in_order = [done[cell.id, prompt] for cell, prompt in wanted if (cell.id, prompt) in done]
    if store.read(run.units) != in_order:
        store.rewrite(run.units, in_order)


def study_size(preset: str) -> StudySize:
    """A preset of the studies by name."""
    if preset not in SIZES:
        raise SlalomError(f"unknown preset {preset!r}; choose from {', '.join(SIZES)}")
    return SIZES[preset]


def explore(
    lm: SteerableModel, constraint: Constraint, prompt: str, settings: Preset, size: StudySize, seed: int = 0
) -> Record:
    """Hops and perplexity of every step's drafts, and how many different tokens each position has had.

    A hop is a position whose token differs from the draft before; perplexity is under the steered LM.
    """
    import torch

    from slalom.decoding.scheduler import decode

    seen: dict[int, list[Seen]] = {}  # by ticket, every step's

    def collect(rows: list[RowReport]) -> None:
        for row in rows:
            seen.setdefault(row.ticket, []).append(row.seen)

    decode(lm, _requests(lm, constraint, prompt, settings, size, seed), (collect,))
    steps = list(zip(*seen.values(), strict=False))  # those that all rows have: a first step may write fewer drafts
    tokens = [torch.cat([one.draft.tokens for one in rows]).cpu() for rows in steps]  # of every step, [rows, n]
    perplexity = [fmean(one.perplexity for one in rows) for rows in steps]
    score = [fmean(one.verdict.score for one in rows) for rows in steps]
    hops = [(new != old).sum(-1).float().mean().item() for old, new in pairwise(tokens)]
    different = [len({int(step[row, i]) for step in tokens}) for row in range(size.rows) for i in range(LENGTH)]
    return {
        "hops": [_six_digits(value) for value in hops],
        "unique": _six_digits(sum(different) / len(different)),
        "perplexity": [_six_digits(value) for value in perplexity],
        "score": [_six_digits(value) for value in score],
    }


def cost(
    lm: SteerableModel, constraint: Constraint, prompt: str, settings: Preset, size: StudySize, seed: int = 0
) -> Record:
    """The time of all steps, the paper's n · s / t, and the backward operations of one step."""
    from slalom.decoding.scheduler import decode

    requests = _requests(lm, constraint, prompt, settings, size, seed)
    backward = profile_step(lm, requests)  # first, as a warm-up for what is timed
    started = time.perf_counter()
    finished = decode(lm, requests)
    seconds = time.perf_counter() - started
    steps = max(one.drafts for one in finished)
    return {
        "seconds": round(seconds, 4),
        "steps": steps,
        "rows": size.rows,
        "tokens_per_second": _six_digits(LENGTH * steps / seconds),
        "backward": backward,
    }


def _requests(
    lm: SteerableModel, constraint: Constraint, prompt: str, settings: Preset, size: StudySize, seed: int
) -> list[Request]:
    """One prompt with as many seeds as the study has rows, from `seed` on."""
    from slalom.backbone.rollout import Limits
    from slalom.decoding.sampler import Request

    limits = Limits(LENGTH, forbidden=constraint.forbids(lm.vocabulary))
    encoded = lm.encode(prompt, LENGTH)
    return [Request(encoded, seed + row, constraint, limits, settings) for row in range(size.rows)]


def profile_step(lm: SteerableModel, requests: list[Request]) -> dict[str, Any]:
    """Calls and seconds of each operation's backward pass in a sampler's first step, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from slalom.decoding.randomness import Rng
    from slalom.decoding.sampler import Problem

    sampler = requests[0].settings.sampler
    requests[0].constraint.check(lm.vocabulary, LENGTH)
    rng = Rng.from_seeds([request.seed for request in requests], lm.device)
    problem = Problem.of(lm, requests)
    state = sampler.init(problem, rng.fold(1))
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
    with profile(activities=activities) as profiler:
        sampler.step(problem, state, rng.fold(2))
    backward: dict[str, Any] = {}
    for event in profiler.key_averages():
        if re.fullmatch(r"\w+Backward\d*", event.key):
            took = max(event.cpu_time_total, getattr(event, "device_time_total", 0.0))
            backward[event.key] = {"calls": event.count, "seconds": _six_digits(took / 1e6)}
    return dict(sorted(backward.items()))


UNIT_MEASURES: dict[str, UnitMeasure] = {"exploration": explore, "efficiency": cost}


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")
