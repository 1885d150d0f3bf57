"""A job's side files: which job it is (OUT.job.json) and what is finished (OUT.partial), so that it can go on."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.frontends.batch.lines import FinishedLine
from slalom.frontends.batch.reading import Source, named_folders

PACKAGES = ("slalom", "torch", "transformers", "openvino")  # whose version may change a text
UNFINISHED = -1
SHOWN = 40  # characters of a value in a message
RESOLVED = ("engine", "dtype", "device")  # settings that a machine may decide: each finished row says what they were
GO_ON = "go on with what it was begun with, give another output, or --restart to begin anew"


def beside(out: Path, ending: str) -> Path:
    """OUT with something more at its end."""
    return out.with_name(out.name + ending)


def fingerprint(source: Source, settings: dict[str, Any]) -> dict[str, Any]:
    """What decides the texts of a job before a model is loaded: input, settings, files of models, versions."""
    named = [settings.get("model"), *named_folders(settings), *source.folders]
    samplers = {settings.get("sampler"), *source.samplers}
    return {
        "input": {"sha256": source.sha256, "rows": source.rows},
        "settings": {name: value for name, value in settings.items() if name not in RESOLVED},
        "files": {name: _files(Path(name)) for name in named if name and _is_readable_folder(name)},
        "calibration": {"weight": _weight(settings.get("model"))} if "dab" in samplers else {},
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _weight(model: str | None) -> float | None:
    """The bias weight that dab takes for a model."""
    from slalom.backbone.names import DEFAULT
    from slalom.decoding.recorded import recorded_weight

    return recorded_weight(model or DEFAULT)


def _is_readable_folder(name: str) -> bool:
    """Whether a name is a folder's; also of names that no file could have, and folders that only others may read."""
    return os.path.isdir(name) and os.access(name, os.R_OK | os.X_OK)


def _files(folder: Path) -> dict[str, list[int]]:
    """Size and time of change of every file of a folder."""
    states = {path.name: path.stat() for path in sorted(folder.iterdir()) if path.is_file()}
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """While open, no other process works on this output."""
    out.parent.mkdir(parents=True, exist_ok=True)
    place = out.with_name(f".{out.name}.lock")
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SlalomError(f"another process is writing {out}; wait for it, or give another output") from None
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        lock.release()


class SideFiles:
    """What is finished of a job, on the disk. The memory it takes is a number a row."""

    def __init__(self, out: Path, job: dict[str, Any], restart: bool = False) -> None:
        self.out, self.job = out, job
        self._about, self._partial = beside(out, ".job.json"), beside(out, ".partial")
        self._written_by: str | None = None  # what the first text was written by
        rows = job["input"]["rows"]
        self._places = array("q", [UNFINISHED]) * rows  # where each row's line begins in OUT.partial
        if restart:
            self.remove()
        before = store.read_json(self._about)
        if before is not None:
            self._refuse_another(before)
            self._index()
        elif out.exists() and not restart:
            raise SlalomError(f"{out} is there already; give another output, or --restart to write it anew")

    def _refuse_another(self, before: dict[str, Any]) -> None:
        """A job begun with other settings is not gone on with."""
        old, new = _flat(before), _flat(self.job)
        differing = sorted({name for name, _ in old.items() ^ new.items()})
        if differing:
            name = differing[0]
            then, now = _short(old.get(name)), _short(new.get(name))
            raise SlalomError(f"{self.out} was begun with another {name} (then {then}, now {now}); {GO_ON}")

    def _refuse_another_writer(self, written_by: str | None) -> None:
        """Rows are not put beside those of another engine, precision or device: their texts might differ."""
        self._written_by = self._written_by or written_by
        if written_by not in (None, self._written_by):
            raise SlalomError(
                f"{self.out} was begun with another engine, dtype or device "
                f"(then {self._written_by}, now {written_by}); {GO_ON}"
            )

    def _index(self) -> None:
        """Where every finished row stands; an incomplete last line, as a kill may leave it, is cut off."""
        if not self._partial.exists():
            return
        with self._partial.open("r+b") as file:
            place = 0
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(place)
                    break
                one = self._parsed(line)
                self._refuse_another_writer(one.written_by)
                self._places[one.number] = place
                place += len(line)

    def _parsed(self, line: bytes) -> FinishedLine:
        try:
            return FinishedLine(**json.loads(line))
        except (ValueError, TypeError):
            raise SlalomError(
                f"{self._partial} holds a line that is no finished row; was it changed by hand? --restart begins anew"
            ) from None

    @property
    def done(self) -> int:
        """How many rows are finished."""
        return len(self._places) - self._places.count(UNFINISHED)

    def has(self, number: int) -> bool:
        """Whether a row is finished."""
        return self._places[number] != UNFINISHED

    def append(self, finished: list[FinishedLine]) -> None:
        """Keep finished rows: they are on the disk when this returns, each once."""
        for one in finished:
            self._refuse_another_writer(one.written_by)
        if not self._about.exists():
            self._partial.unlink(missing_ok=True)  # of a job that nothing is known of any more
            store.write_json(self._about, self.job)
        with self._partial.open("ab") as file:
            place = file.tell()
            for one in finished:
                if self.has(one.number):
                    continue
                line = json.dumps(one._asdict(), ensure_ascii=False).encode() + b"\n"
                file.write(line)
                self._places[one.number] = place
                place += len(line)
            file.flush()
            os.fsync(file.fileno())

    def in_order(self) -> Iterator[FinishedLine]:
        """Every finished row, in the order of the input."""
        if not self.done:
            return
        with self._partial.open("rb") as file:
            for place in self._places:
                if place != UNFINISHED:
                    file.seek(place)
                    yield self._parsed(file.readline())

    def remove(self) -> None:
        """Forget the job."""
        self._about.unlink(missing_ok=True)
        self._partial.unlink(missing_ok=True)


def _flat(job: dict[str, Any]) -> dict[str, str]:
    """A description in two levels as names and values that can be compared."""
    return {
        f"{name} of {part}": json.dumps(value, sort_keys=True)
        for part, values in job.items()
        for name, value in values.items()
    }


def _short(value: str | None) -> str:
    return "none" if value is None else value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
