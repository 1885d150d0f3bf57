"""The contract of a sampler, and the problem it works on."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Limits, Prompts
from slalom.constraints.constraint import Constraint, Judgement
from slalom.decoding.randomness import Rng
from slalom.types import Draft

ENOUGH = 4.6  # a margin whose probability is 0.99


def worth(judgement: Judgement, draft: Draft, enough: float, fluency: float) -> torch.Tensor:
    """Which of two drafts is better all in all: what is wished, up to `enough` each, and fluency, weighed together."""
    return judgement.capped(enough) - fluency * draft.perplexity.log()


class Judge:
    """Judges drafts by a constraint, the latest one only once however often it is asked for."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint
        self.latest: tuple[Draft, Judgement] | None = None

    def __call__(self, draft: Draft) -> Judgement:
        """The draft's judgement."""
        if self.latest is None or self.latest[0] is not draft:
            self.latest = (draft, self.constraint.judge(draft))
        return self.latest[1]


class Problem(NamedTuple):
    """What is to be written: which prompt each row continues, how far, and what it should be like."""

    lm: LanguageModel
    prompts: Prompts
    rows: torch.Tensor  # [B], row i continues prompt rows[i]
    limits: Limits
    constraint: Constraint
    judge: Judge

    def select(self, rows: list[int] | torch.Tensor) -> Problem:
        """The same for some of the rows."""
        return self._replace(rows=self.rows[rows])


class Sampler(Protocol):
    """A frozen dataclass of knobs with three functions. A state is a NamedTuple whose tensors have a row per row."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """The state before the first step."""

    def step(self, problem: Problem, state: Any, rng: Rng) -> Any:
        """The next state."""

    def read(self, problem: Problem, state: Any) -> Draft:
        """The state's draft."""
