"""Words to a rule of decoding: they never stand in the continuation, nor among the candidates."""

from __future__ import annotations

import re
import unicodedata
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.rollout import Forbidden
from slalom.backbone.vocabulary import CONTEXT, Vocabulary
from slalom.constraints.constraint import SCALE
from slalom.constraints.custom import Custom
from slalom.errors import SlalomError
from slalom.types import Prompt

INSIDE_A_WORD = r"[^\W_]"  # a letter or a digit
SPACES = 50  # how many there may be between the words of a phrase that the prompt has begun
EDGE = 4  # characters at the start of a tail that may be wrong: bytes of one cut in half, the end of a longer word
COMPOSED = 3  # characters that folding makes one of, at the most: a letter and two accents, a Hangul syllable
ACCENTS = 32  # cut from their letter, they fold otherwise than in the whole; no real text has more on one letter
REMEMBERED = 4096  # continuations known to hold none of the words


class Avoid(Custom):
    """Words that never appear in the continuation, as whole words, in any case: no draft ever holds one.

    A word begun by the prompt and finished by the continuation counts. f is 0 without them, -4 with one.
    """

    def __init__(self, words: list[str]) -> None:
        self.words = [word.strip() for word in words if word.strip()]
        if not self.words:
            raise SlalomError("no words to avoid given; give at least one")
        self._patterns = [re.compile(_whole(word)) for word in self.words]
        self._reach = max(len(_folded(word)) for word in self.words) + SPACES
        self._tokens: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()
        super().__init__(
            lambda prompt, text: -SCALE if self.found(prompt, text) else 0.0,
            name=f"avoid:{', '.join(self.words)}",
            satisfied_at=0.0,
        )

    def found(self, prompt: str, text: str) -> bool:
        """Whether one of the words ends in the continuation."""
        head = _folded_end(prompt, self._reach)
        whole = head + _folded(text)
        return any(match.end(1) > len(head) for pattern in self._patterns for match in pattern.finditer(whole))

    def found_in_tail(self, tail: str) -> bool:
        """Whether one of the words stands in the end of a longer text, further from its edge than a few characters."""
        folded = _folded(tail)
        return any(match.start() >= EDGE for pattern in self._patterns for match in pattern.finditer(folded))

    def forbids(self, vocabulary: Vocabulary) -> Forbidden:
        """The words, however they are put together from tokens."""
        if vocabulary not in self._tokens:
            held = torch.tensor([self.found("", text) for text in vocabulary.texts])
            self._tokens[vocabulary] = held.to(vocabulary.device)
        return Forbidden(self._tokens[vocabulary], _Checker(self, vocabulary).written)


class _Checker:
    """Whether continuations hold a word to avoid, with work that does not grow with them.

    Text grows by a token at a time. Where all but the last token is known to hold no word, only a word that ends with
    the last token can be new, so a few tokens before it are decoded, not the whole continuation.
    """

    def __init__(self, avoid: Avoid, vocabulary: Vocabulary) -> None:
        self._avoid = avoid
        self._vocabulary = vocabulary
        # A letter may be written as several characters, a base and its accents: as many as its decomposition, no more.
        longest = max(len(unicodedata.normalize("NFKD", _folded(word))) for word in avoid.words)
        self._needed = 4 * (longest + SPACES)  # quarters of a character before the last token
        self._clean: set[tuple[str, tuple[int, ...], tuple[int, ...]]] = set()

    def written(self, prompt: Prompt, tokens: list[int]) -> bool:
        """Whether one of the words ends in the prompt's continuation."""
        context = prompt.ids[-CONTEXT:]  # all of the ids that the continuation's text depends on
        start = self._tail_start(tokens)
        if start and (prompt.text, context, tuple(tokens[:-1])) in self._clean:
            found = self._avoid.found_in_tail(self._vocabulary.decode([tokens[start:]])[0])
        else:
            found = self._avoid.found(prompt.text, self._vocabulary.continuations([prompt], [tokens])[0])
        if not found:
            if len(self._clean) >= REMEMBERED:
                self._clean.clear()
            self._clean.add((prompt.text, context, tuple(tokens)))
        return found

    def _tail_start(self, tokens: list[int]) -> int:
        """The latest token with which the tail can begin; 0 if all are needed."""
        needed = self._needed
        for start in range(len(tokens) - 2, 0, -1):
            needed -= self._quarters(tokens[start])
            if needed <= 0:
                return start
        return 0

    def _quarters(self, token: int) -> int:
        """How much text a token is at the least, spaces aside, in quarters of a character, which has at most 4 bytes.

        Byte tokens count as nothing, so that no tail begins within a run of them, which is decoded as a whole.
        """
        text = self._vocabulary.texts[token]
        if token in self._vocabulary.byte_tokens:
            return 0
        return 1 if "\ufffd" in text else 4 * len("".join(text.split()))


def _whole(word: str) -> str:
    """A pattern for a word that does not stand inside a longer one; any space will do between its parts.

    It looks ahead, so that one match does not hide another that overlaps it.
    """
    folded = _folded(word)
    before = rf"(?<!{INSIDE_A_WORD})" if folded[0].isalnum() else ""
    after = rf"(?!{INSIDE_A_WORD})" if folded[-1].isalnum() else ""
    parts = r"\s+".join(map(re.escape, folded.split()))
    return f"{before}(?=({parts}){after})"


def _folded_end(text: str, length: int) -> str:
    """The last characters of the folded text, so many of them, without folding all of a long one."""
    return _folded(text[-(COMPOSED * length + ACCENTS) :])[-length:]


def _folded(text: str) -> str:
    """The same for all cases and forms of a letter."""
    return unicodedata.normalize("NFKC", text).casefold()
