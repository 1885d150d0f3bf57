"""A file of evaluations to folders of results, one after the other; and how much of them is left.

Every run has a folder of its own and goes on where it stopped. A run that fails is named, and the next one begins.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slalom.errors import SlalomError
from slalom.evaluation.plan import Chunk, chunks
from slalom.evaluation.progress import OnProgress
from slalom.evaluation.run_evaluation import TOGETHER, run_evaluation
from slalom.evaluation.studies import UNIT_MEASURES, study_size
from slalom.evaluation.typed import CheckedRun, TypedRun, checked

if TYPE_CHECKING:
    from slalom.api import SteerableModel
    from slalom.evaluation.judges import LoadJudge


class QueuedRun(TypedRun):
    """One evaluation of a queue."""

    name: str = Field(min_length=1)  # of its folder
    what: str = ""  # what it is for


class QueueFile(BaseModel):
    """A queue's file: runs, in the order they are done."""

    model_config = ConfigDict(extra="forbid")

    out: str = "."  # the folder that all runs' folders lie in, from the file's own
    runs: list[QueuedRun] = Field(min_length=1)

    @model_validator(mode="after")
    def _different_names(self) -> QueueFile:
        names = [run.name for run in self.runs]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two runs are called {twice[0]!r}; each needs a name of its own")
        return self


class QueueEntry(NamedTuple):
    """A run of a queue, checked."""

    name: str
    what: str
    folder: Path
    run: CheckedRun


class Left(NamedTuple):
    """How far one run is."""

    name: str
    what: str
    done: int  # texts written, or units measured
    total: int
    seconds: float | None  # for the writing that is left; none while nothing like it was timed


Pace = dict[tuple[str, ...], list[float]]  # what was timed → seconds and tokens


def read_queue(path: Path) -> list[QueueEntry]:
    """A queue's runs, all checked before any of them begins. Task files are looked for beside the queue's own."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlalomError(f"there is no queue file {path}") from None
    except (OSError, ValueError) as error:
        raise SlalomError(f"{path} cannot be read as TOML ({error})") from None
    try:
        queue = QueueFile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SlalomError(
            f"{path}{f', {where}' if where else ''}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    return [_entry(path, path.parent / queue.out, run) for run in queue.runs]


def _entry(path: Path, out: Path, run: QueuedRun) -> QueueEntry:
    tasks = [str(path.parent / task) if task.endswith(".toml") else task for task in run.tasks]
    try:
        ready = checked(run.model_copy(update={"tasks": tasks}))
        if ready.settings.study in UNIT_MEASURES:
            study_size(run.preset)
        else:
            for task in ready.tasks:
                task.size(run.preset)
    except SlalomError as error:
        raise SlalomError(f"{path}, {run.name}: {error}") from None
    return QueueEntry(run.name, run.what, out / run.name, ready)


def run_queue(
    entries: list[QueueEntry],
    load_lm: Callable[[str, Any], SteerableModel],
    judges: Callable[[str], dict[str, LoadJudge]],
    on_progress: OnProgress,
    say: Callable[[str], None],
) -> dict[str, str]:
    """Every run that is not done yet; why those that failed did, by name. An LM that the next run needs too is kept."""
    failed: dict[str, str] = {}
    loaded: dict[tuple[str, Any], SteerableModel] = {}

    def load(entry: QueueEntry) -> SteerableModel:
        key = entry.run.settings.model, entry.run.settings.engine
        if key not in loaded:
            loaded.clear()  # before the next one comes: two may not fit
            loaded[key] = load_lm(*key)
        return loaded[key]

    for number, entry in enumerate(entries, 1):
        say(f"{number} of {len(entries)}: {entry.name}, {_told_left(entries)}")
        settings = entry.run.settings
        try:
            run_evaluation(
                entry.folder,
                settings,
                entry.run.tasks,
                lambda entry=entry: load(entry),  # type: ignore[misc]
                judges(settings.judges),
                on_progress,
            )
        except Exception as error:  # whatever it is, the next run begins
            failed[entry.name] = str(error) if isinstance(error, SlalomError) else f"{type(error).__name__}: {error}"
            say(f"{entry.name} failed: {failed[entry.name]}")
    return failed


def left(entries: list[QueueEntry]) -> list[Left]:
    """How far every run is, by what stands in the folders; the time by how long like texts took there."""
    planned = {entry.name: _planned(entry) for entry in entries}
    records = {entry.name: _records(entry.folder) for entry in entries}
    pace: Pace = defaultdict(lambda: [0.0, 0.0])
    for entry in entries:
        for chunk in planned[entry.name]:
            if timed := records[entry.name].get(chunk.key):
                for key in _likeness(entry, chunk):
                    pace[key][0] += timed[0]["seconds"]
                    pace[key][1] += chunk.tokens
    return [_left(entry, planned[entry.name], records[entry.name], pace) for entry in entries]


def _told_left(entries: list[QueueEntry]) -> str:
    try:
        return hours_left(left(entries))
    except Exception as error:  # a folder that cannot be read is named when its run comes
        return f"time left unknown ({type(error).__name__})"


def hours_left(state: list[Left]) -> str:
    """The time left in a few words."""
    timed = [one.seconds for one in state if one.seconds is not None]
    untimed = [one.name for one in state if one.seconds is None]
    known = f"about {sum(timed) / 3600:.1f} h of writing left" if timed else "nothing timed yet"
    return known + (f", besides {len(untimed)} of {len(state)} runs not timed yet" if untimed and timed else "")


def _left(entry: QueueEntry, planned: list[Chunk], records: dict[str, list[dict[str, Any]]], pace: Pace) -> Left:
    settings = entry.run.settings
    if settings.study in UNIT_MEASURES:
        total = study_size(settings.preset).prompts * len(settings.cells)
        done = len(_lines(entry.folder / "units.jsonl"))
        return Left(entry.name, entry.what, done, total, 0.0 if done >= total else None)
    skipped = _skipped(entry.folder)
    wanted = [chunk for chunk in planned if chunk.cell.id not in skipped]
    missing = [chunk for chunk in wanted if chunk.key not in records]
    seconds: float | None = 0.0
    for chunk in missing:
        known = next((pace[key] for key in _likeness(entry, chunk) if key in pace), None)
        seconds = None if known is None or seconds is None else seconds + chunk.tokens * known[0] / known[1]
    texts = sum(_texts(chunk) for chunk in wanted)
    return Left(entry.name, entry.what, texts - sum(map(_texts, missing)), texts, seconds)


def _likeness(entry: QueueEntry, chunk: Chunk) -> list[tuple[str, ...]]:
    """What a chunk's time is told by, the likest first: the same sampler on the same LM, then on any."""
    settings, cell = entry.run.settings, chunk.cell
    return [
        (settings.model, settings.engine, cell.task, cell.sampler, cell.preset),
        (settings.model, settings.engine, cell.sampler, cell.preset),
        (settings.model, settings.engine, cell.sampler),
        (cell.sampler,),
    ]


def _texts(chunk: Chunk) -> int:
    return len(chunk.items) * chunk.samples


def _planned(entry: QueueEntry) -> list[Chunk]:
    settings, tasks = entry.run.settings, {task.name: task for task in entry.run.tasks}
    if settings.study in UNIT_MEASURES:
        return []
    return [chunk for cell in settings.cells for chunk in chunks(cell, tasks[cell.task], settings.preset, TOGETHER)]


def _records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The texts of a folder by chunk, read without changing it: another process may be writing."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in _lines(folder / "generations.jsonl"):
        found[record["chunk"]].append(record)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")  # the last line may be half written
    return [json.loads(line) for line in whole]


def _skipped(folder: Path) -> set[str]:
    path = folder / "run.json"
    return set(json.loads(path.read_text(encoding="utf-8"))["skipped"]) if path.exists() else set()
