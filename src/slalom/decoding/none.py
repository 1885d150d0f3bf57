"""The LM's own text: a rollout that nothing steers, to compare the others with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Self

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


@dataclass(frozen=True)
class Unsteered:
    """No steering: the LM's likeliest text, or, where tokens are drawn, another independent sample each step."""

    name: ClassVar[str] = "none"
    paper: ClassVar[str] = "The language model alone"
    cost: ClassVar[str] = "a rollout without gradients"

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
        return state if problem.drawing is None else UnsteeredState(own_text(problem.redrawn(rng)))

    def read(self, problem: Problem, state: UnsteeredState) -> Draft:
        """The latest draft."""
        return state.latest


def own_text(problem: Problem) -> Draft:
    """What the LM writes by itself."""
    lm, prompts, rows, limits, *_ = problem
    if problem.drawing is not None:
        return rollout(lm, prompts, rows, limits, draw=problem.draw).draft
    different, owners = rows.unique(return_inverse=True)
    return rollout(lm, prompts, different, limits).draft.select(owners)
