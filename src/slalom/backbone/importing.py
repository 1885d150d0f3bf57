"""A block of imports to the same, sooner: nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """While open, Python looks for no garbage: what an import makes stays, and to look through it takes time.

    For a program's own start; a library leaves the collector to the program.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
