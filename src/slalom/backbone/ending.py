"""A written text to where it should end: before a stop string, or after its last whole sentence."""

from __future__ import annotations

import itertools
import re

from slalom.backbone.vocabulary import Vocabulary
from slalom.types import Prompt

# One mark, then perhaps closing quotes or brackets. An ellipsis is no end: any text can trail off.
_MARK = r"""(?<![.\u2026])[.!?]["'\u201d\u2019\u00bb)\]]*(?=\s|$)"""

# Dots that end no sentence. Where English leaves it open ("the U.S. The"), better a sentence fewer than half of one.
_TITLES = "Mr|Mrs|Ms|Mx|Dr|Prof|Rev|Hon|Pres|Gov|Sen|Rep|Gen|Col|Maj|Capt|Lt|Sgt|St|Mt"
_ABBREVIATION = rf"""(?<![^\s("'\u201c\u2018\[])(?:  # at the start of a word
    (?:{_TITLES}|vs|cf|approx|Ph\.D)\.
  | (?:[A-Za-z]\.){{2,}}                            # e.g. i.e. U.S. p.m.
  | [A-HJ-Z]\.                                      # an initial; not I, which may well come last
  | (?:etc|al|Inc|Ltd|Co|Corp|Jr|Sr)\.(?=,|\s+[a-z])  # these end a sentence too, unless it goes on
  | (?:No|no|Nos|nos|Fig|p|pp|Vol|vol)\.(?=\s*\d)    # of a number
)"""
_DOTS = re.compile(rf"{_ABBREVIATION} | (?P<end>{_MARK})", re.VERBOSE)


def ends_sentence(text: str) -> bool:
    """Whether a text ends where a sentence does."""
    return whole_sentences(text) == len(text.rstrip())


def whole_sentences(text: str) -> int | None:
    """How many characters of a text its whole sentences take; none if there is no whole one."""
    return max((found.end() for found in _DOTS.finditer(text) if found["end"]), default=None)


def sentences(text: str) -> list[str]:
    """The whole sentences of a text; all of it if there is none."""
    ends = [found.end() for found in _DOTS.finditer(text) if found["end"]]
    return [text[start:end].strip() for start, end in itertools.pairwise([0, *ends])] or [text.strip()]


def before_stop(text: str, stops: tuple[str, ...]) -> int | None:
    """How many characters stand before the first stop string; none if there is none."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def tokens_for(vocabulary: Vocabulary, prompt: Prompt, tokens: list[int], characters: int) -> int:
    """How many of a continuation's tokens it takes to write so many of its characters."""
    if not characters:
        return 0
    (spans,) = vocabulary.spans([prompt], [tokens])
    return next(count for count, (_, end) in enumerate(spans, 1) if end >= characters)
