"""A sampler and a batch to milliseconds of a step, in turns with plain `generate`: the stopwatch of `slalom bench`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from slalom.api import SteerableModel
from slalom.backbone.model import LanguageModel
from slalom.backbone.names import EngineName
from slalom.backbone.rollout import Limits
from slalom.constraints import Constraint, TableClassifier, classifier
from slalom.decoding.climb import Climb
from slalom.decoding.dab import DAB, PAPER
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem, Request, Sampler
from slalom.evaluation.textbook import Textbook

PROMPT = "The food here is"  # four tokens of the default LM
LENGTH = 20
LENGTHS, BATCHES = (20, 50, 100, 200), (1, 4, 16, 64)  # how a step grows
SIDE = 4  # the batch while the length grows
STEPS = 4  # steps per repeat: how much of a draft a step writes anew varies from step to step
SAMPLERS: dict[str, Sampler] = {"climb": Climb(), "dab": DAB()}
TABLE_CLASSIFIER = "sentiment-smollm2"  # in the paper's construction, which the textbook needs
TEXTBOOK = replace(PAPER, norm="centred")

Figures = dict[str, dict[str, float]]


class Stepper:
    """A sampler on one prompt: each run takes it some steps further."""

    def __init__(
        self, lm: LanguageModel, constraint: Constraint, batch: int, sampler: Sampler, length: int = LENGTH
    ) -> None:
        constraint.check(lm.vocabulary, length)
        prompt, settings = lm.encode(PROMPT, length), Preset(sampler, steps=1)
        requests = [Request(prompt, seed, constraint, Limits(length), settings) for seed in range(batch)]
        self.problem, self.steps = Problem.of(lm, requests), 0
        self.rng = Rng.from_seeds(list(range(batch)), lm.device)
        self.sampler = sampler
        self.state = sampler.init(self.problem, self.rng.fold(1))

    def run(self, steps: int) -> None:
        """Take so many steps."""
        for _ in range(steps):
            self.state = self.sampler.step(self.problem, self.state, self.rng.fold(2 + self.steps))
            self.steps += 1


def time_in_turns(calls: dict[Any, Callable[[], None]], repeats: int) -> dict[Any, float]:
    """Median seconds of each call, taking turns; the first turn is a warm-up and not counted."""
    times: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, run in calls.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    return {name: median(taken[1:]) for name, taken in times.items()}


def plain_generate(lm: LanguageModel, model: Any, prompts: list[str], length: int) -> None:
    """Stock greedy `generate` of the prompts, told nothing, of exactly so many tokens."""
    read = lm.pad([lm.encode(prompt, length).ids for prompt in prompts])
    greedy = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False}
    model.generate(input_ids=read.ids, attention_mask=read.mask, **greedy, pad_token_id=lm.vocabulary.pad)


def step_and_generate(
    lms: dict[EngineName, SteerableModel],
    plain: dict[str, Any],
    constraint: Constraint,
    batch: int,
    repeats: int,
    steps: int = STEPS,
) -> dict[str, Figures]:
    """Milliseconds of each sampler's step by engine, and of `generate` by precision, all in turns of so many steps."""
    calls: dict[tuple[str, str], Callable[[], None]] = {}
    for name, sampler in SAMPLERS.items():
        for engine, lm in lms.items():
            calls[name, engine] = functools.partial(Stepper(lm, constraint, batch, sampler).run, steps)
    for dtype, model in plain.items():
        calls["generate", dtype] = functools.partial(plain_generate, lms["torch"], model, [PROMPT] * batch, LENGTH)
    found: dict[str, Figures] = {}
    for (kind, name), took in time_in_turns(calls, repeats).items():
        count = 1 if kind == "generate" else steps
        found.setdefault(kind, {}).setdefault(name, {})[str(batch)] = round(1000 * took / count, 1)
    return found


def scaling(lms: dict[EngineName, SteerableModel], constraint: Constraint) -> dict[str, Figures]:
    """Milliseconds of a step of the default sampler as the length and the batch grow, beside `generate` of as much."""
    found: dict[str, Figures] = {}
    for kind, sizes in ((f"length, batch {SIDE}", LENGTHS), (f"batch, length {LENGTH}", BATCHES)):
        rows = found.setdefault(kind, {})
        for size in sizes:
            batch, length = (SIDE, size) if sizes is LENGTHS else (size, LENGTH)
            calls: dict[str, Callable[[], None]] = {
                engine: functools.partial(Stepper(lm, constraint, batch, SAMPLERS["climb"], length).run, 2)
                for engine, lm in lms.items()
            }
            own = lms["torch"]
            calls["generate"] = functools.partial(plain_generate, own, own.model, [PROMPT] * batch, length)
            for name, took in time_in_turns(calls, 2).items():
                rows.setdefault(name, {})[str(size)] = round(1000 * took / (1 if name == "generate" else 2), 1)
    return found


def textbook_over_dab(lm: SteerableModel, batch: int, repeats: int) -> dict[str, Any]:
    """The textbook's step over that of dab with the textbook's own knobs.

    The drafts must be equal, but for float ties; `textbook_drafts_alike` counts the equal ones.
    """
    constraint = classifier(TABLE_CLASSIFIER, "positive")
    if not isinstance(constraint, TableClassifier) or constraint.lm != lm.name:
        return {}
    same = Stepper(lm, constraint, batch, TEXTBOOK)
    book = Textbook(lm, constraint, [lm.encode(PROMPT, LENGTH)] * batch, LENGTH, TEXTBOOK)
    drafts = [book.first()]

    def textbook_step() -> None:
        drafts.append(book.step(drafts[-1], same.rng.fold(1 + len(drafts))))

    took = time_in_turns({"textbook": textbook_step, "same": lambda: same.run(1)}, repeats)
    equal = int((drafts[-1].tokens == same.state.latest.tokens).all(-1).sum())
    return {
        "textbook_over_dab_step": round(took["textbook"] / took["same"], 2),
        "textbook_milliseconds": round(1000 * took["textbook"], 1),
        "textbook_drafts_alike": f"{equal} of {batch} after {len(drafts) - 1} steps",
    }
