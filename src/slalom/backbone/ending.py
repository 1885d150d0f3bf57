"""A written text to where it should end: before a stop string, or after its last whole sentence."""

from __future__ import annotations

import re

from slalom.backbone.vocabulary import Vocabulary
from slalom.types import Prompt

# One mark, then perhaps closing quotes or brackets. An ellipsis is no end: any text can trail off.
_MARK = r"""(?<![.\u2026])[.!?]["'\u201d\u2019\u00bb)\]]*"""
_AT_THE_END = re.compile(_MARK + r"\s*$")
_ANYWHERE = re.compile(_MARK + r"(?=\s|$)")


def ends_sentence(text: str) -> bool:
    """Whether a text ends where a sentence does."""
    return bool(_AT_THE_END.search(text))


def whole_sentences(text: str) -> int | None:
    """How many characters of a text its whole sentences take; none if there is no whole one."""
    return max((mark.end() for mark in _ANYWHERE.finditer(text)), default=None)


def before_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """How many characters stand before the first stop string; none if there is none."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def tokens_for(vocabulary: Vocabulary, prompt: Prompt, tokens: list[int], characters: int) -> int:
    """How many of a continuation's tokens it takes to write so many of its characters."""
    if not characters:
        return 0
    (spans,) = vocabulary.spans([prompt], [tokens])
    return next(count for count, (_, end) in enumerate(spans, 1) if end >= characters)
