"""A scheduler's report of a draft to what a page shows of it: tokens as text, what changed, and what was proposed."""

from __future__ import annotations

import math
from typing import Any

from slalom.backbone.rollout import FREE
from slalom.decoding.objective import Seen
from slalom.decoding.scheduler import RowReport


class DraftReader:
    """Reads one text's drafts, and remembers the last one to say what changed."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._block = -1
        self._before: list[int] = []

    def read(self, report: RowReport) -> dict[str, Any]:
        """One draft as /v1/steer/stream sends it."""
        draft = report.seen.draft
        row = draft.tokens[0, : int(draft.lengths)].tolist()
        before = self._before if report.block == self._block else row
        self._block, self._before = report.block, row
        proposed = [FREE] * len(row) if report.proposed is None else report.proposed.tolist()
        texts = draft.vocabulary.texts
        tokens = [
            {
                "text": text,
                "changed": number >= len(before) or before[number] != token,
                "bias": None if proposed[number] == FREE else texts[proposed[number]],
            }
            for number, (token, text) in enumerate(zip(row, _pieces(report.seen, row), strict=True))
        ]
        return {
            "index": self.index,
            "draft": report.drafts,
            "block": report.block,
            "begun": draft.prompts[0].begun,
            "tokens": tokens,
            **_shown(report.seen),
            "best": _shown(report.best),
        }


def _pieces(seen: Seen, row: list[int]) -> list[str]:
    """The text of each token; a character made of several stands at the first that completes it."""
    (spans,) = seen.draft.vocabulary.spans(seen.draft.prompts, [row])
    text, done, pieces = seen.draft.texts[0], 0, []
    for start, end in spans:
        pieces.append(text[max(start, done) : end])
        done = max(done, end)
    return pieces


def _shown(seen: Seen) -> dict[str, Any]:
    return {
        "text": seen.draft.texts[0],
        "score": finite(seen.verdict.score),
        "satisfied": seen.verdict.satisfied,
        "perplexity": finite(seen.perplexity),
    }


def finite(number: float | None) -> float | None:
    """A number as JSON has it: none that is infinite or undefined."""
    return number if number is not None and math.isfinite(number) else None
