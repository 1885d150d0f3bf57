"""A file of evaluations to folders of results, one after the other; and how much of them is left.

Every run has a folder of its own and goes on where it stopped. A run that fails is named, and the next one begins.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slalom.errors import SlalomError
from slalom.evaluation.judges import judge_set
from slalom.evaluation.judging import what_is_read
from slalom.evaluation.plan import Chunk, chunks_of
from slalom.evaluation.progress import OnProgress
from slalom.evaluation.run_evaluation import TOGETHER, run_evaluation
from slalom.evaluation.run_folder import SHARED_SETTINGS
from slalom.evaluation.store import Record
from slalom.evaluation.studies import UNIT_MEASURES, wanted_units
from slalom.evaluation.tasks import Task
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
    judged: int | None  # of the texts written; none of units, which are not judged
    skipped: int  # cells that cannot be done: neither in `done` nor in `total`
    begun_with: str | None  # what its folder was begun with instead; it cannot be gone on with then


@dataclass(frozen=True)
class Found:
    """What stands in a run's folder, of use to it."""

    begun_with: str | None = None
    skipped: set[str] = field(default_factory=set)  # ids of cells
    texts: dict[str, list[Record]] = field(default_factory=dict)  # by chunk
    scores: set[tuple[str, str, str]] = field(default_factory=set)  # a text's id, what was read of it, the judge
    units: set[tuple[str, str]] = field(default_factory=set)  # a cell's id, the prompt


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
        entry = QueueEntry(run.name, run.what, out / run.name, checked(run.model_copy(update={"tasks": tasks})))
        judge_set(run.judges)
        _planned(entry)
        _units(entry)
    except SlalomError as error:
        raise SlalomError(f"{path}, {run.name}: {error}") from None
    return entry


def run_queue(
    entries: list[QueueEntry],
    load_lm: Callable[[str, Any], SteerableModel],
    judges: Callable[[str], dict[str, LoadJudge]],
    on_progress: OnProgress,
    say: Callable[[str], None],
    anew: bool = False,
) -> dict[str, str]:
    """Every run that is not done yet; why those that failed did, by name. An LM that the next run needs too is kept.

    With `anew`, texts of other prompts or settings than today's are written once more.
    """
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
            results = run_evaluation(
                entry.folder,
                settings,
                entry.run.tasks,
                lambda entry=entry: load(entry),  # type: ignore[misc]
                judges(settings.judges),
                on_progress,
                anew,
            )
            _check_judged(results)
        except Exception as error:  # whatever it is, the next run begins
            failed[entry.name] = str(error) if isinstance(error, SlalomError) else f"{type(error).__name__}: {error}"
            say(f"{entry.name} failed: {failed[entry.name]}")
    return failed


def _check_judged(results: dict[str, Any]) -> None:
    """A run without one of its judges is not done."""
    if missing := results["missing_judges"]:
        raise SlalomError("; ".join(f"not judged by {judge} ({why})" for judge, why in missing.items()))


def left(entries: list[QueueEntry]) -> list[Left]:
    """How far every run is, by what stands in the folders; the time by how long like texts took there."""
    planned = {entry.name: _planned(entry) for entry in entries}
    found = {entry.name: _found(entry) for entry in entries}
    pace: Pace = defaultdict(lambda: [0.0, 0.0])
    for entry in entries:
        for chunk in planned[entry.name]:
            if timed := found[entry.name].texts.get(chunk.key):
                for key in _likeness(entry, chunk):
                    pace[key][0] += timed[0]["seconds"]
                    pace[key][1] += chunk.tokens
    return [_left(entry, planned[entry.name], found[entry.name], pace) for entry in entries]


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


def _left(entry: QueueEntry, planned: list[Chunk], found: Found, pace: Pace) -> Left:
    skipped = sum(cell.id in found.skipped for cell in entry.run.settings.cells)
    if entry.run.settings.study in UNIT_MEASURES:
        units = [unit for unit in _units(entry) if unit[0] not in found.skipped]
        done = sum(unit in found.units for unit in units)
        seconds = 0.0 if done == len(units) else None
        return Left(entry.name, entry.what, done, len(units), seconds, None, skipped, found.begun_with)
    wanted = [chunk for chunk in planned if chunk.cell.id not in found.skipped]
    written = [chunk for chunk in wanted if len(found.texts.get(chunk.key, [])) == _texts(chunk)]
    keys = {chunk.key for chunk in written}
    return Left(
        entry.name,
        entry.what,
        done=sum(map(_texts, written)),
        total=sum(map(_texts, wanted)),
        seconds=_seconds(entry, [chunk for chunk in wanted if chunk.key not in keys], pace),
        judged=_judged(entry, written, found),
        skipped=skipped,
        begun_with=found.begun_with,
    )


def _seconds(entry: QueueEntry, missing: list[Chunk], pace: Pace) -> float | None:
    """The time that chunks will take; none if nothing like one of them was timed."""
    seconds = 0.0
    for chunk in missing:
        known = next((pace[key] for key in _likeness(entry, chunk) if key in pace), None)
        if known is None:
            return None
        seconds += chunk.tokens * known[0] / known[1]
    return seconds


def _judged(entry: QueueEntry, written: list[Chunk], found: Found) -> int:
    """How many texts have the scores of every judge, as far as the set of judges has those that their task names."""
    settings, tasks = entry.run.settings, _tasks(entry)
    asked = {
        name: [
            (reads, judge) for judge in judge_set(settings.judges) for reads in what_is_read(task, judge, settings.both)
        ]
        for name, task in tasks.items()
    }
    return sum(
        all((record["id"], reads, judge) in found.scores for reads, judge in asked[chunk.cell.task])
        for chunk in written
        for record in found.texts[chunk.key]
    )


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


def _tasks(entry: QueueEntry) -> dict[str, Task]:
    return {task.name: task for task in entry.run.tasks}


def _planned(entry: QueueEntry) -> list[Chunk]:
    settings = entry.run.settings
    return [] if settings.study in UNIT_MEASURES else chunks_of(settings, _tasks(entry), TOGETHER)


def _units(entry: QueueEntry) -> list[tuple[str, str]]:
    """What a study of the sampling itself measures: a cell's id and a prompt."""
    settings = entry.run.settings
    return [(cell.id, prompt) for cell, prompt in wanted_units(settings)] if settings.study in UNIT_MEASURES else []


def _found(entry: QueueEntry) -> Found:
    """A folder's contents, read without changing them: another process may be writing."""
    path = entry.folder / "run.json"
    if not path.exists():
        return Found()
    saved = json.loads(path.read_text(encoding="utf-8"))
    for name in (*SHARED_SETTINGS, "study"):
        if saved[name] != (wanted := getattr(entry.run.settings, name)):
            return Found(f"{name} {saved[name]!r}, not {wanted!r}")
    texts: dict[str, list[Record]] = defaultdict(list)
    for record in _lines(entry.folder / "generations.jsonl"):
        texts[record["chunk"]].append(record)
    scores = {
        (line["id"], reads, judge)
        for line in _lines(entry.folder / "scores.jsonl")
        for reads, by_judge in line.items()
        if reads != "id"
        for judge in by_judge
    }
    units = {(unit["cell"], unit["prompt"]) for unit in _lines(entry.folder / "units.jsonl")}
    return Found(None, set(saved["skipped"]), texts, scores, units)


def _lines(path: Path) -> list[Record]:
    if not path.exists():
        return []
    *whole, _ = path.read_text(encoding="utf-8").split("\n")  # the last line may be half written
    return [json.loads(line) for line in whole]
