"""The contract of a sampler, and the problem it works on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Draw, Limits, Prompts
from slalom.constraints.constraint import Constraint, Judgement
from slalom.decoding.drawing import Drawing
from slalom.decoding.randomness import Rng
from slalom.types import Draft, Prompt

ENOUGH = 4.6  # a margin whose probability is 0.99


def worth(judgement: Judgement, draft: Draft, enough: float, fluency: float) -> torch.Tensor:
    """Which of two drafts is better all in all: what is wished, up to `enough` each, and fluency, weighed together.

    One that says nothing is worth nothing, however sure the LM is that nothing should be said.
    """
    value = judgement.capped(enough) - fluency * draft.perplexity.log()
    return value.masked_fill(draft.empty, -torch.inf)


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
    drawing: Drawing | None = None  # greedy decoding without it

    def select(self, rows: list[int] | torch.Tensor) -> Problem:
        """The same for some of the rows."""
        return self._replace(rows=self.rows[rows], drawing=self.drawing and self.drawing.select(rows))

    def redrawn(self, rng: Rng) -> Problem:
        """The same with other random numbers where tokens are drawn."""
        return self._replace(drawing=self.drawing and self.drawing._replace(rng=rng))

    @property
    def owners(self) -> list[Prompt]:
        """Each row's prompt."""
        return [self.prompts.prompts[row] for row in self.rows.tolist()]

    @property
    def draw(self) -> Draw | None:
        """How a rollout draws its tokens, unless it takes the likeliest."""
        return self.drawing.draw if self.drawing else None


class Sampler(Protocol):
    """A frozen dataclass of knobs with three functions. A state is a NamedTuple whose tensors have a row per row."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    paper: ClassVar[str]  # who published it
    cost: ClassVar[str]  # what a step computes

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Settings of a whole run for such a wish: `default`, and others by name."""

    def stronger(self, strength: float) -> Self:
        """The same sampler pulling so many times as hard."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """The state before the first step."""

    def step(self, problem: Problem, state: Any, rng: Rng) -> Any:
        """The next state."""

    def read(self, problem: Problem, state: Any) -> Draft:
        """The state's draft."""


class Stop(NamedTuple):
    """When a row may leave: satisfied, and fluent; or satisfied for long enough."""

    degree: float  # of satisfaction
    fluent: float = math.inf  # perplexity at the most, in units of the unsteered text's
    patience: int = 0  # drafts it goes on after the first that is satisfied, for one that is fluent as well


@dataclass(frozen=True)
class Preset:
    """Settings of a whole run."""

    sampler: Sampler
    steps: int  # drafts at the most
    stop: Stop | None = None  # when a row may leave before that
    choice: str = "score"  # which draft is best: by "score", "joint" with fluency, or simply the "latest"
    temperature: float = 0.0  # of the rollouts; 0 is greedy
    top_p: float = 1.0  # of the rollouts
