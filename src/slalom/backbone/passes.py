"""How much the LM was asked: a count of its passes, one for every row at every position, for whoever opens it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass
class Passes:
    """Rows times positions of continuations whose logits were computed; prompts and gradients come on top."""

    count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, count: int) -> None:
        """So many more; threads that share passes may say so at once."""
        with self._lock:
            self.count += count


_OPEN: ContextVar[Passes | None] = ContextVar("passes", default=None)


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """While open, the passes of this thread, and of those it starts to share them, are counted."""
    passes = Passes()
    before = _OPEN.set(passes)
    try:
        yield passes
    finally:
        _OPEN.reset(before)


def count_passes(rows: int, positions: int = 1) -> None:
    """Say that so many rows were read at so many positions."""
    if (passes := _OPEN.get()) is not None:
        passes.add(rows * positions)
