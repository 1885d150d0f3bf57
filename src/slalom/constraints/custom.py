"""Text to number: any Python function of prompt and continuation as a constraint, without a gradient."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from slalom.constraints.constraint import Constraint, Judgement, Likeliest, Part, first
from slalom.errors import SlalomError
from slalom.types import Draft, Relaxed

Function = Callable[[str, str], float | bool]  # prompt and continuation → how good, higher is better


class Custom(Constraint):
    """What a Python function says of the text: it chooses among drafts, but names no token to try.

    `fn(prompt, continuation)` gives a number or a bool; the wish is fulfilled from `satisfied_at` on. `description` is
    the wish in words that go on from "a text that", for the LM to be told.
    """

    def __init__(
        self, fn: Function, name: str | None = None, satisfied_at: float = 1.0, description: str | None = None
    ) -> None:
        self.fn = fn
        self.description = description
        self.name = name or f"custom:{getattr(fn, '__name__', type(fn).__name__)}"
        self.satisfied_at = self.full_score = satisfied_at

    def score(self, draft: Draft) -> torch.Tensor:
        """The function's own numbers."""
        pairs = zip(draft.prompts, draft.wholes, strict=True)
        numbers = [self._number(prompt.text[: prompt.begins], text) for prompt, text in pairs]
        return torch.tensor(numbers, device=draft.tokens.device)

    def describe(self, likeliest: Likeliest = first) -> str | None:
        """What was given."""
        return self.description

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """Nothing: there is no gradient."""
        return torch.zeros(candidates.shape, device=candidates.device)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """Nothing, at every mixture."""
        return 0.0 * relaxed.mixtures.sum((1, 2))

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether the number is high enough."""
        return self.score(draft) >= self.satisfied_at

    def prefix_score(self, draft: Draft) -> torch.Tensor:
        """Nothing: the function is asked about whole texts only."""
        return torch.zeros(len(draft.texts), device=draft.tokens.device)

    def judge(self, draft: Draft) -> Judgement:
        """One call of the function for score and satisfaction."""
        score = self.score(draft)
        satisfied = score >= self.satisfied_at
        return Judgement(score, satisfied.float(), [Part(self.name, score, None, satisfied)])

    def _number(self, prompt: str, text: str) -> float:
        said = self.fn(prompt, text)
        try:
            number = float(said)
        except (TypeError, ValueError):
            number = math.nan
        if math.isnan(number):
            raise SlalomError(f"{self.name} gave {said!r} for a text; it must give a number or a bool")
        return number


ANYTHING = Custom(lambda prompt, text: True, "anything")  # asks for nothing
