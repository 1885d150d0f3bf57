"""Finished chunks to how far a run is, and how many seconds are left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from slalom.evaluation.plan import Chunk


class Progress(NamedTuple):
    """How far a run is."""

    stage: str
    done: int
    total: int
    seconds_left: float | None  # none until something has been timed


OnProgress = Callable[[Progress], None]


class WritingSpeed:
    """Seconds per token of each sampler, and from them the time left."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, chunk: Chunk, seconds: float) -> None:
        """Count the time one chunk took."""
        self.tokens[chunk.cell.sampler] += chunk.tokens
        self.seconds[chunk.cell.sampler] += seconds

    def seconds_left(self, remaining: list[Chunk], skipped: dict[str, str]) -> float | None:
        """Seconds for the remaining chunks; a sampler not yet timed is taken to be as fast as the average."""
        if not self.tokens:
            return None
        average = sum(self.seconds.values()) / sum(self.tokens.values())
        per_token = {name: self.seconds[name] / self.tokens[name] for name in self.tokens}
        unskipped = [chunk for chunk in remaining if chunk.cell.id not in skipped]
        return sum(chunk.tokens * per_token.get(chunk.cell.sampler, average) for chunk in unskipped)


def time_left(started: float, done: int, remaining: int) -> float | None:
    """Seconds for the remaining ones at the average pace since `started` (time.perf_counter)."""
    return (time.perf_counter() - started) / done * remaining if done else None
