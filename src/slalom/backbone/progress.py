"""Work under way to what a person sees of it on standard error: a line, a bar, a spinner; drawn only on a terminal."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def say(sentence: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(sentence, highlight=False)


@contextlib.contextmanager
def bar(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar in bytes, moved by a call with the bytes done so far; elsewhere than on a terminal, one line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ({total / 1e6:.0f} MB)", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done)


@contextlib.contextmanager
def spinner(title: str) -> Iterator[None]:
    """What is being done, and for how long; elsewhere than on a terminal, one line."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(title, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        progress.add_task(title, total=None)
        yield


class _Verbosity(NamedTuple):
    """transformers' own settings before it was silenced."""

    level: int
    bars: bool


_SAVED: list[_Verbosity] = []  # one entry for each `with quiet_transformers()` that is open in any thread
_SAVED_LOCK = threading.Lock()


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Turn transformers' own progress bars and warnings off while ours is on the screen.

    Its switches are shared by all threads: the first to enter saves and clears them, the last to leave restores them.
    """
    from transformers.utils import logging as hf_logging

    with _SAVED_LOCK:
        now = _Verbosity(hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled())
        _SAVED.append(_SAVED[0] if _SAVED else now)
        hf_logging.set_verbosity(logging.ERROR)
        hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        with _SAVED_LOCK:
            before = _SAVED.pop()
            if not _SAVED:
                hf_logging.set_verbosity(before.level)
                if before.bars:
                    hf_logging.enable_progress_bar()
