"""The LM's own text: a rollout that nothing steers, to compare the others with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from slalom.backbone.rollout import rollout
from slalom.constraints.constraint import Constraint
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem
from slalom.types import Draft


class UnsteeredState(NamedTuple):
    """The latest draft."""

    latest: Draft

    def select(self, rows: list[int]) -> UnsteeredState:
        """Only these rows."""
        return UnsteeredState(self.latest.select(rows))

    def join(self, other: UnsteeredState, columns: tuple[int, int]) -> UnsteeredState:
        """The rows of both."""
        return UnsteeredState(self.latest.join(other.latest))


@dataclass(frozen=True)
class Unsteered:
    """No steering: the LM's likeliest text, or, where tokens are drawn, another independent sample each step."""

    name: ClassVar[str] = "none"
    paper: ClassVar[str] = "The language model alone"
    cost: ClassVar[str] = "a rollout without gradients"
    mixes: ClassVar[bool] = True
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """One greedy text."""
        return {"default": Preset(cls(), steps=1)}

    def stronger(self, strength: float) -> Self:
        """No strength changes what does not steer."""
        return self

    def init(self, problem: Problem, rng: Rng) -> UnsteeredState:
        """The LM's own draft; a greedy one is decoded once per prompt."""
        return UnsteeredState(own_text(problem))

    def step(self, problem: Problem, state: UnsteeredState, rng: Rng) -> UnsteeredState:
        """A fresh sample; greedy decoding would give the same text again."""
        return state if problem.greedy else UnsteeredState(own_text(problem.redrawn(rng)))

    def read(self, problem: Problem, state: UnsteeredState) -> Draft:
        """The latest draft."""
        return state.latest


def own_text(problem: Problem) -> Draft:
    """What the LM writes by itself; of rows that would be the same, one is written."""
    first: dict[Any, int] = {}
    owners = [first.setdefault(key, row) for row, key in enumerate(_keys(problem))]
    different = list(first.values())
    some = problem.select(different)
    draft = rollout(some.lm, some.prompts, some.rows, some.row_limits, draw=some.draw).draft
    return draft.select([different.index(row) for row in owners])


def _keys(problem: Problem) -> list[Any]:
    """What a row's own text depends on."""
    drawn = (problem.drawing.temperature > 0).tolist()
    rows = zip(problem.rows.tolist(), problem.row_limits, drawn, strict=True)
    return [
        (prompt, id(limits.forbidden), limits._replace(forbidden=None), drawn and row)
        for row, (prompt, limits, drawn) in enumerate(rows)
    ]
