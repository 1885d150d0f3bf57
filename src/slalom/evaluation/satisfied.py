"""Ways of steering to what a satisfied text costs: seconds over those of plain `generate`, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean, median
from typing import Any

from slalom.api import SteerableModel
from slalom.constraints.constraint import Constraint
from slalom.evaluation.bench import plain_generate

LENGTH = 20
Log = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """One way to get a text that is as wished: the options of `steer`."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


def reporting_prompts(count: int) -> list[str]:
    """Everyday prompts that nothing was tuned on."""
    return (files(__package__) / "data" / "reporting_prompts.txt").read_text(encoding="utf-8").splitlines()[:count]


def satisfied_over_generate(
    lm: SteerableModel,
    constraints: dict[str, Constraint],
    ways: tuple[Way, ...],
    batch: int,
    prompts: int,
    log: Log,
) -> dict[str, dict[str, dict[str, float]]]:
    """For every wish and way: seconds a satisfied text over plain greedy `generate` of as many tokens and texts.

    Every batch of prompts is written by `generate` and then by every way in turn. A text that is not satisfied costs
    its seconds and counts for nothing.
    """
    listed = reporting_prompts(prompts)
    batches = [listed[start : start + batch] for start in range(0, len(listed), batch)]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for wish, constraint in constraints.items():
        seconds: dict[str, list[float]] = {way.name: [] for way in ways}
        plain: list[float] = []
        drafts: dict[str, list[int]] = {way.name: [] for way in ways}
        satisfied = dict.fromkeys(seconds, 0)
        _warm_up(lm, constraint, ways, batches[0])
        for number, some in enumerate(batches):
            log(f"a satisfied text, {wish}, batch {batch}: {number + 1} of {len(batches)}")
            started = time.perf_counter()
            plain_generate(lm, lm.model, some, LENGTH)
            plain.append((time.perf_counter() - started) / len(some))
            for way in ways:
                started = time.perf_counter()
                rows = lm.steer(some, constraint, length=LENGTH, **way.options).rows
                seconds[way.name].append((time.perf_counter() - started) / len(some))
                drafts[way.name] += [row.steps for row in rows]
                satisfied[way.name] += sum(row.satisfied for row in rows)
        found[wish] = {
            way.name: {
                "seconds": round(median(seconds[way.name]), 3),
                "over_generate": round(
                    fmean(seconds[way.name]) / fmean(plain) / (max(satisfied[way.name], 1) / len(listed)), 2
                ),
                "over_generate_median": round(
                    median(took / own for took, own in zip(seconds[way.name], plain, strict=True)), 2
                ),
                "satisfied": satisfied[way.name] / len(listed),
                "drafts": round(fmean(drafts[way.name]), 1),
            }
            for way in ways
        }
    return found


def _warm_up(lm: SteerableModel, constraint: Constraint, ways: tuple[Way, ...], prompts: list[str]) -> None:
    """What is made once (tables, graphs) is not timed."""
    plain_generate(lm, lm.model, prompts[:1], 4)
    for way in ways:
        lm.steer(prompts[:1], constraint, length=4, **{**way.options, "steps": 2})
