"""A name to a folder of the cache on disk: filled once, by one process at a time, complete or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from slalom.backbone.progress import say
from slalom.errors import SlalomError


def home() -> Path:
    """The cache folder: `SLALOM_HOME`, or `slalom` in the platform's cache folder."""
    if chosen := os.environ.get("SLALOM_HOME"):
        return Path(chosen).expanduser().absolute()
    return user_cache_path("slalom", appauthor=False, opinion=False)


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, filled by `make` if it is not there yet: beside its place, by one process at a time."""
    if not place.is_dir():
        with file_lock(place):
            if not place.is_dir():
                _make_beside(place, make)
    return place


def write(file: Path, text: str) -> None:
    """Write a small file beside its place and rename it into it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(file)


@contextlib.contextmanager
def file_lock(place: Path) -> Iterator[None]:
    """Hold the lock file of a folder; a second process waits for the first instead of doing the work again."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place.parent / f".{place.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"another process is preparing {place.name}; waiting for it")
            lock.acquire()
    except OSError as error:
        raise SlalomError(
            f"the cache folder {home()} cannot be written ({error.strerror}); set SLALOM_HOME to a folder of yours"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _make_beside(place: Path, make: Callable[[Path], None]) -> None:
    """Fill a folder beside the place, rename it into it. The caller holds the lock, so leftovers here are stale."""
    for stale in place.parent.glob(f".{place.name}.partial-*"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}.partial-", dir=place.parent))
    try:
        make(partial)
        partial.chmod(0o755)
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
