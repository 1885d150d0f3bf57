"""A problem and a sampler to each row's best draft: the only loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from slalom.constraints.constraint import Judgement
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import ENOUGH, Problem, Sampler, Stop, worth
from slalom.types import Draft


class Seen(NamedTuple):
    """A draft and its judgement."""

    draft: Draft
    judgement: Judgement

    def select(self, rows: list[int]) -> Seen:
        """Only these rows."""
        return Seen(self.draft.select(rows), self.judgement.select(rows))


class Finished(NamedTuple):
    """One row's end: its best draft, its first, and how many were written."""

    best: Seen
    first: Seen
    steps: int


class Outcome(NamedTuple):
    """All rows, in the order asked, and how long they took."""

    rows: list[Finished]
    seconds: float


class Report(NamedTuple):
    """What callbacks learn after every step."""

    step: int
    steps: int
    rows: list[int]  # the rows this step worked on
    seen: Seen  # their new drafts
    best: list[Seen]  # every row's best so far


Callback = Callable[[Report], None]
Better = Callable[[Seen, Seen], torch.Tensor]  # new and old drafts → where the new one is better: bool [B]


def by_score(new: Seen, old: Seen) -> torch.Tensor:
    """The paper's choice: the higher f; but anything is better than nothing."""
    empty, before = new.draft.empty, old.draft.empty
    return torch.where(empty == before, new.judgement.score > old.judgement.score, before)


def jointly(new: Seen, old: Seen, enough: float = ENOUGH, fluency: float = 1.0) -> torch.Tensor:
    """The satisfied one; if both are or none is, the one that is worth more, f and fluency together."""
    mine, their = (worth(seen.judgement, seen.draft, enough, fluency) for seen in (new, old))
    satisfied, before = (seen.judgement.satisfied & ~seen.draft.empty for seen in (new, old))
    return torch.where(satisfied == before, mine > their, satisfied)


def latest(new: Seen, old: Seen) -> torch.Tensor:
    """No choice at all: the draft written last."""
    return torch.ones_like(new.judgement.satisfied)


CHOICES: dict[str, Better] = {"score": by_score, "joint": jointly, "latest": latest}


def choice(name: str, sampler: Sampler) -> Better:
    """The choice of that name; jointly, by the scales of a sampler that weighs its drafts itself."""
    scales = {scale: getattr(sampler, scale) for scale in ("enough", "fluency") if hasattr(sampler, scale)}
    return partial(jointly, **scales) if name == "joint" else CHOICES[name]


def decode(
    problem: Problem,
    sampler: Sampler,
    seeds: list[int],
    steps: int,
    stop: Stop | None = None,
    better: Better = by_score,
    callbacks: tuple[Callback, ...] = (),
) -> Outcome:
    """Step the sampler, keep each row's best draft, let rows leave once that is good enough.

    A row's draft depends on its own seed alone, whoever is in the batch. `steps` counts drafts, the first included.
    """
    started = time.perf_counter()
    rng = Rng.from_seeds(seeds, problem.rows.device)
    rows = list(range(len(seeds)))
    state = sampler.init(problem, rng.fold(1))
    seen = _look(problem, sampler, state)
    first = [seen.select([i]) for i in rows]
    best, written = list(first), [1] * len(rows)
    since: dict[int, int] = {}  # a row's number → the first step that satisfied it
    for step in range(1, steps + 1):
        if step > 1:
            state = sampler.step(problem, state, rng.fold(step))
            seen = _look(problem, sampler, state)
            for i, row in enumerate(rows):
                new = seen.select([i])
                best[row] = new if better(new, best[row]) else best[row]
                written[row] = step
        for callback in callbacks:
            callback(Report(step, steps, rows, seen, best))
        going = list(range(len(rows)))
        if stop is not None:
            there = {row: step for row in rows if _satisfied(stop, best[row])}
            since = there | since
            going = [
                i for i, row in enumerate(rows) if not _may_leave(stop, best[row], first[row], step, since.get(row))
            ]
        if not going:
            break
        if len(going) < len(rows):
            rows = [rows[i] for i in going]
            problem, state, rng = problem.select(going), state.select(going), rng.select(going)
    ends = [Finished(*end) for end in zip(best, first, written, strict=True)]
    return Outcome(ends, time.perf_counter() - started)


def _may_leave(stop: Stop, best: Seen, first: Seen, step: int, since: int | None) -> bool:
    if since is None or not _satisfied(stop, best):
        return False
    fluent = bool(best.draft.perplexity <= stop.fluent * first.draft.perplexity)
    return fluent or step - since >= stop.patience


def _satisfied(stop: Stop, best: Seen) -> bool:
    """Whether a row has a text, and one that fulfils the wish to the asked degree."""
    return bool(best.judgement.degree >= stop.degree) and not bool(best.draft.empty)


def _look(problem: Problem, sampler: Sampler, state: Any) -> Seen:
    draft = sampler.read(problem, state)
    return Seen(draft, problem.judge(draft))
