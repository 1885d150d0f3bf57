"""How much the LM was asked: a count of its passes, one for every row at every position, for whoever opens it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Passes:
    """Rows times positions of continuations whose logits were computed; prompts and gradients come on top."""

    count: int = 0


_OPEN: ContextVar[Passes | None] = ContextVar("passes", default=None)


@contextmanager
def counted_passes() -> Iterator[Passes]:
    """While open, this thread's passes are counted."""
    passes = Passes()
    before = _OPEN.set(passes)
    try:
        yield passes
    finally:
        _OPEN.reset(before)


def count_passes(rows: int, positions: int = 1) -> None:
    """Say that so many rows were read at so many positions."""
    if (passes := _OPEN.get()) is not None:
        passes.count += rows * positions
