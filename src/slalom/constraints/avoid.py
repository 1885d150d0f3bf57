"""Words to a rule of decoding: they never stand in the continuation, nor among the candidates."""

from __future__ import annotations

import re
import unicodedata
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.rollout import Forbidden
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.custom import Custom
from slalom.constraints.keywords import SCALE
from slalom.errors import SlalomError
from slalom.types import Prompt

INSIDE_A_WORD = r"[^\W_]"  # a letter or a digit
SPACES = 50  # how many there may be between the words of a phrase that the prompt has begun


class Avoid(Custom):
    """Words that never appear in the continuation, as whole words, in any case: no draft ever holds one.

    A word begun by the prompt and finished by the continuation counts. f is 0 without them, -4 with one.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = [word.strip() for word in words if word.strip()]
        if not self.words:
            raise SlalomError("no words to avoid given; give at least one")
        self._patterns = [re.compile(_whole(word)) for word in self.words]
        self._reach = max(map(len, self.words)) + SPACES
        self._tokens: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()
        super().__init__(
            lambda prompt, text: -SCALE if self.found(prompt, text) else 0.0,
            name=f"avoid:{', '.join(self.words)}",
            satisfied_at=0.0,
        )

    def found(self, prompt: str, text: str) -> bool:
        """Whether one of the words ends in the continuation."""
        head = _folded(prompt)[-self._reach :]
        whole = head + _folded(text)
        return any(match.end(1) > len(head) for pattern in self._patterns for match in pattern.finditer(whole))

    def forbids(self, vocabulary: Vocabulary) -> Forbidden:
        """The words, however they are put together from tokens."""
        if vocabulary not in self._tokens:
            held = torch.tensor([self.found("", text) for text in vocabulary.texts])
            self._tokens[vocabulary] = held.to(vocabulary.embeddings.device)

        def written(prompt: Prompt, tokens: list[int]) -> bool:
            return self.found(prompt.text, vocabulary.continuations([prompt], [tokens])[0])

        return Forbidden(self._tokens[vocabulary], written)


def _whole(word: str) -> str:
    """A pattern for a word that does not stand inside a longer one; any space will do between its parts.

    It looks ahead, so that one match does not hide another that overlaps it.
    """
    folded = _folded(word)
    before = rf"(?<!{INSIDE_A_WORD})" if folded[0].isalnum() else ""
    after = rf"(?!{INSIDE_A_WORD})" if folded[-1].isalnum() else ""
    parts = r"\s+".join(map(re.escape, folded.split()))
    return f"{before}(?=({parts}){after})"


def _folded(text: str) -> str:
    """The same for all cases and forms of a letter."""
    return unicodedata.normalize("NFKC", text).casefold()
