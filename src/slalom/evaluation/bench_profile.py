"""A step to its parts: milliseconds of each, what f's looks take of it, and how many tokens the LM really decodes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from slalom.api import SteerableModel
from slalom.backbone.model import LanguageModel
from slalom.constraints import Constraint
from slalom.decoding import climb
from slalom.evaluation.bench_steps import SAMPLERS, STEPS, Figures, Stepper

DECODED = "decoded tokens a second"


def profile(lm: SteerableModel, constraint: Constraint, batches: tuple[int, ...], steps: int = 2 * STEPS) -> Figures:
    """For each batch, milliseconds of a step of the default sampler by part, and the tokens decoded in a second of it.

    Calls are timed in place: torch's profiler would need the same patches and slows the step it measures.
    """
    found: Figures = {}
    for batch in batches:
        seconds: dict[str, float] = defaultdict(float)
        stepper = Stepper(lm, constraint, batch, SAMPLERS["climb"])
        stepper.run(1)
        with contextlib.ExitStack() as timers:
            for owner, name, part in (
                (constraint, "score", "constraint"),
                (climb, "shortlist", "shortlist"),
                (climb, "rollout", "rollout"),
            ):
                timers.enter_context(_timed_calls(owner, name, part, seconds))
            decoded = timers.enter_context(_timed_passes(lm, seconds))
            started = time.perf_counter()
            stepper.run(steps)
            seconds["step"] = time.perf_counter() - started
        seconds["rest of the rollout"] = seconds.pop("rollout") - seconds["LM passes"]
        found[str(batch)] = {part: round(1000 * took / steps, 1) for part, took in seconds.items()}
        found[str(batch)][DECODED] = round(sum(decoded) / seconds["step"], 1)
    return found


def looks_share(profiles: dict[str, Figures]) -> dict[str, dict[str, float]]:
    """What reading texts by the constraint takes of a step, by engine and batch."""
    return {
        engine: {batch: round(parts["constraint"] / parts["step"], 3) for batch, parts in by_batch.items()}
        for engine, by_batch in profiles.items()
    }


@contextlib.contextmanager
def _timed_calls(owner: Any, name: str, part: str, seconds: dict[str, float]) -> Iterator[None]:
    """Adds the time of every call of owner.name to seconds[part], inside a `with` block."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds[part] += time.perf_counter() - started

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextlib.contextmanager
def _timed_passes(lm: LanguageModel, seconds: dict[str, float]) -> Iterator[list[int]]:
    """The same for every forward pass of the engine, each a rollout's; and how many rows each decoded a token for."""
    original = lm.engine.start
    decoded: list[int] = []

    def start(*args: Any) -> Any:
        run = original(*args)
        read = run.read

        def counted(step: int, tokens: Any, rows: Any) -> Any:
            decoded.append(len(rows))
            return read(step, tokens, rows)

        setattr(run, "read", counted)  # noqa: B010
        passes.enter_context(_timed_calls(run, "read", "LM passes", seconds))
        return run

    with contextlib.ExitStack() as passes:
        setattr(lm.engine, "start", start)  # noqa: B010
        try:
            yield decoded
        finally:
            setattr(lm.engine, "start", original)  # noqa: B010
