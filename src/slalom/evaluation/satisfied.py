"""Variants of steering to what a satisfied text costs: seconds over those of plain `generate`, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean, median
from typing import Any

from slalom.api import SteerableModel
from slalom.constraints import Sentiment
from slalom.constraints.constraint import Constraint
from slalom.evaluation.bench_steps import plain_generate

LENGTH = 20
BOTH = "both wishes"
TOLD: dict[str, bool | str] = {"told": "auto", "untold": False}
Log = Callable[[str], None]


@dataclass(frozen=True)
class Variant:
    """One way to get a text that is as wished: the options of `steer`, and a name for tables."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Cost:
    """What the texts of one variant cost, batch by batch."""

    seconds: list[float] = field(default_factory=list)  # a text, of every batch
    plain: list[float] = field(default_factory=list)  # the same by `generate`
    drafts: list[int] = field(default_factory=list)  # of every text
    satisfied: list[bool] = field(default_factory=list)

    def add(self, other: Cost) -> Cost:
        """Those of both."""
        return Cost(*(mine + their for mine, their in zip(vars(self).values(), vars(other).values(), strict=True)))

    def figures(self) -> dict[str, float]:
        """A text that is not satisfied costs its seconds and counts for nothing; missing if none is satisfied."""
        share = sum(self.satisfied) / len(self.satisfied)
        ratios = [took / own for took, own in zip(self.seconds, self.plain, strict=True)]
        mean = {"mean": round(fmean(self.seconds) / fmean(self.plain) / share, 2)} if share else {}
        return {
            "median": round(median(ratios), 2),
            **mean,
            "n": len(self.satisfied),
            "satisfied": round(share, 3),
            "drafts": round(fmean(self.drafts), 1),
            "seconds": round(median(self.seconds), 3),
        }


def reporting_prompts(count: int) -> list[str]:
    """Everyday prompts that nothing was tuned on."""
    return (files(__package__) / "data" / "reporting_prompts.txt").read_text(encoding="utf-8").splitlines()[:count]


def satisfied_variants(
    lm: SteerableModel, batch: int, prompts: int, peers: int, told: dict[str, bool | str], quick: bool, log: Log
) -> dict[str, dict[str, dict[str, float]]]:
    """The default sampler, best-of-8 and BOLT, told and untold as `told` says, for both wishes.

    BOLT takes long: it gets the first `peers` prompts, or as many as fill a batch; none if that is 0. `quick` is one
    wish by the default sampler.
    """
    labels = ("negative",) if quick else ("negative", "positive")
    samplers = {"climb": "climb"} if quick else {"climb": "climb", "best-of-8": "best-of-n"}
    wishes: dict[str, Constraint] = {label: Sentiment(label) for label in labels}
    found = satisfied_over_generate(lm, wishes, _variants(samplers, told), batch, prompts, log)
    if peers and not quick:
        found |= satisfied_over_generate(lm, wishes, _variants({"bolt": "bolt"}, TOLD), batch, max(peers, batch), log)
    return found


def _variants(samplers: dict[str, str], told: dict[str, bool | str]) -> tuple[Variant, ...]:
    return tuple(
        Variant(f"{name}, {how}", {"sampler": sampler, "tell": tell})
        for name, sampler in samplers.items()
        for how, tell in told.items()
    )


def satisfied_over_generate(
    lm: SteerableModel,
    constraints: dict[str, Constraint],
    variants: tuple[Variant, ...],
    batch: int,
    prompts: int,
    log: Log,
) -> dict[str, dict[str, dict[str, float]]]:
    """For every variant and wish, and for all wishes together: seconds of a satisfied text over greedy `generate`.

    Every batch of prompts is written by `generate`, as many tokens and texts, and then by every variant in turn. The
    median is over batches, each against its own `generate`; the mean counts satisfied texts alone.
    """
    listed = reporting_prompts(prompts)
    batches = [listed[start : start + batch] for start in range(0, len(listed), batch)]
    costs: dict[str, dict[str, Cost]] = {variant.name: {} for variant in variants}
    for wish, constraint in constraints.items():
        _warm_up(lm, constraint, variants, batches[0])
        for number, some in enumerate(batches):
            log(f"a satisfied text on {lm.engine.name}, {wish}, batch {batch}: {number + 1} of {len(batches)}")
            started = time.perf_counter()
            plain_generate(lm, lm.model, some, LENGTH)
            plain = (time.perf_counter() - started) / len(some)
            for variant in variants:
                started = time.perf_counter()
                rows = lm.steer(some, constraint, length=LENGTH, **variant.options).rows
                took = (time.perf_counter() - started) / len(some)
                cost = Cost([took], [plain], [row.steps for row in rows], [row.satisfied for row in rows])
                costs[variant.name][wish] = costs[variant.name].get(wish, Cost()).add(cost)
    return {name: _figures(by_wish) for name, by_wish in costs.items()}


def _figures(by_wish: dict[str, Cost]) -> dict[str, dict[str, float]]:
    """Those of each wish, and of all together if there are several."""
    found = {wish: cost.figures() for wish, cost in by_wish.items()}
    if len(by_wish) > 1:
        whole = Cost()
        for cost in by_wish.values():
            whole = whole.add(cost)
        found[BOTH] = whole.figures()
    return found


def _warm_up(lm: SteerableModel, constraint: Constraint, variants: tuple[Variant, ...], prompts: list[str]) -> None:
    """What is made once (tables, graphs) is not timed."""
    plain_generate(lm, lm.model, prompts[:1], 4)
    for variant in variants:
        lm.steer(prompts[:1], constraint, length=4, **{**variant.options, "steps": 2})
