"""What anybody would try first: draw several texts, keep the one that is best by f and fluency together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slalom.constraints.constraint import Constraint
from slalom.decoding.none import Unsteered
from slalom.decoding.sampler import Preset


@dataclass(frozen=True)
class BestOfN(Unsteered):
    """The best of n texts that the LM draws, 8 unless `steps` says otherwise: no steering, only choosing."""

    name: ClassVar[str] = "best-of-n"
    paper: ClassVar[str] = "Everybody's first idea"
    cost: ClassVar[str] = "a drawn rollout without gradients"

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Eight texts at temperature 1."""
        return {"default": Preset(cls(), steps=8, choice="joint", temperature=1.0)}
