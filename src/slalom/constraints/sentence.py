"""Text to its form: whether the continuation ends where a sentence does, and how many words it has."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.ending import ends_sentence
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import SCALE, Constraint
from slalom.constraints.custom import Custom
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed


class EndsWithSentence(Custom):
    """The continuation must end at the end of a sentence: f is 4 if it does, else 0.

    At mixtures, f is 4 times the weight of tokens that end a sentence at the last position.
    """

    def __init__(self) -> None:
        super().__init__(
            lambda prompt, text: SCALE * ends_sentence(text), name="ends-with-sentence", satisfied_at=SCALE
        )
        self._enders: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """4 for a token that ends a sentence at a row's last position, 0 everywhere else."""
        positions = torch.arange(candidates.shape[1], device=candidates.device)
        last = positions == draft.lengths[:, None] - 1  # [B, n]
        return SCALE * self.enders(draft.vocabulary)[candidates] * last[..., None]

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f of mixtures: only the last one counts."""
        return SCALE * (relaxed.mixtures[:, -1] * self.enders(relaxed.vocabulary)).sum(-1)

    def prefix_score(self, draft: Draft) -> torch.Tensor:
        """The score of what fills the whole length; a beginning shorter than that promises nothing."""
        return self.score(draft).masked_fill(draft.lengths < draft.tokens.shape[1], 0.0)

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """Asked of the last block alone."""
        return self if blocks == 1 else None

    def wanted(self, vocabulary: Vocabulary) -> list[int]:
        """The marks themselves."""
        pieces = [vocabulary.pieces(mark) for mark in ".!?"]
        return [own[0] for own in pieces if len(own) == 1]

    def enders(self, vocabulary: Vocabulary) -> torch.Tensor:
        """1 for every token whose own text ends a sentence: [V]."""
        if vocabulary not in self._enders:
            marks = torch.tensor([float(ends_sentence(text)) for text in vocabulary.texts])
            self._enders[vocabulary] = marks.to(vocabulary.device)
        return self._enders[vocabulary]


class Length(Custom):
    """The continuation must have between `least` and `most` words: f is 4 if so, 1 less a word off, at least 0."""

    def __init__(self, least: int, most: int) -> None:
        if not 0 <= least <= most or most < 1:
            raise SlalomError(
                f"the length is between {least} and {most} words; it must be between two whole numbers, "
                "the first at least 0, the second at least 1 and no smaller than the first"
            )
        self.most = most
        super().__init__(
            lambda prompt, text: max(0.0, SCALE - _off(len(text.split()), least, most)),
            name=f"length:{least}-{most}",
            satisfied_at=SCALE,
        )

    def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
        """Both ends asked of the last block; of one before it, no more than its share of the words that are left."""
        if blocks == 1:
            return self
        words = len(prompt.begun.split())
        share = math.ceil((self.most - words) / blocks)
        return Length(0, words + share) if share > 0 else None


def _off(words: int, least: int, most: int) -> int:
    return max(least - words, words - most, 0)
