"""What anybody would try first: draw several texts, keep the one that is best by f and fluency together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from slalom.constraints.constraint import Constraint
from slalom.decoding.none import Unsteered, UnsteeredState, own_text
from slalom.decoding.objective import CHOICES, Seen
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem


@dataclass(frozen=True)
class BestOfN(Unsteered):
    """The best of n texts that the LM draws, 8 unless `steps` says otherwise (in fours): no steering, only choosing.

    A long text is drawn and chosen block by block: of n whole ones hardly any is as wished in every sentence.
    """

    name: ClassVar[str] = "best-of-n"
    paper: ClassVar[str] = "Everybody's first idea"
    cost: ClassVar[str] = "4 drawn rollouts side by side without gradients"
    blockwise: ClassVar[bool] = True
    drafts: ClassVar[int] = 4  # side by side in a step

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Eight texts, drawn as climb draws its first ones: at temperature 1 those of a small LM read badly."""
        return {"default": Preset(cls(), steps=8, choice="joint", temperature=0.8, top_p=0.95)}

    def init(self, problem: Problem, rng: Rng) -> UnsteeredState:
        """The first samples, by random numbers of their own in every block."""
        return self._drawn(problem, rng)

    def step(self, problem: Problem, state: UnsteeredState, rng: Rng) -> UnsteeredState:
        """More samples; greedy decoding would give the same text again."""
        return state if problem.greedy else self._drawn(problem, rng)

    def _drawn(self, problem: Problem, rng: Rng) -> UnsteeredState:
        """Of each row's samples the best."""
        count, device = len(problem.rows), problem.rows.device
        owners = torch.arange(count, device=device).repeat_interleave(self.drafts)
        numbers = torch.arange(self.drafts, device=device).repeat(count)
        several = problem.select(owners).redrawn(rng.select(owners).fold(numbers))
        draft = own_text(several)
        seen = [Seen(draft.select([row]), verdict) for row, verdict in enumerate(several.judge(draft))]
        best = [_best(problem, seen, row * self.drafts, self.drafts) for row in range(count)]
        chosen = draft.select(best)
        problem.verdicts.remember(chosen, [seen[row].verdict for row in best])
        return UnsteeredState(chosen)


def _best(problem: Problem, seen: list[Seen], first: int, count: int) -> int:
    """Of so many drafts of one row the number of the best."""
    settings = problem.requests[first // count].settings
    best = first
    for number in range(first + 1, first + count):
        if CHOICES[settings.choice](seen[number], seen[best], settings.objective):
            best = number
    return best
