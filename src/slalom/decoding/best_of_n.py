"""What anybody would try first: draw several texts, keep the one that is best by f and fluency together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slalom.constraints.constraint import Constraint
from slalom.decoding.none import Unsteered, UnsteeredState, own_text
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem


@dataclass(frozen=True)
class BestOfN(Unsteered):
    """The best of n texts that the LM draws, 8 unless `steps` says otherwise: no steering, only choosing.

    A long text is drawn and chosen block by block: of n whole ones hardly any is as wished in every sentence.
    """

    name: ClassVar[str] = "best-of-n"
    paper: ClassVar[str] = "Everybody's first idea"
    cost: ClassVar[str] = "a drawn rollout without gradients"
    blockwise: ClassVar[bool] = True

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Eight texts at temperature 1."""
        return {"default": Preset(cls(), steps=8, choice="joint", temperature=1.0)}

    def init(self, problem: Problem, rng: Rng) -> UnsteeredState:
        """The first sample, by random numbers of its own in every block."""
        return UnsteeredState(own_text(problem.redrawn(rng)))
