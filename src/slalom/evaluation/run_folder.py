"""A folder to the evaluation in it: its settings and tasks, where its texts and scores are, one process at a time."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slalom.backbone.names import DEFAULT
from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.cells import Cell
from slalom.evaluation.tasks import Task, load_task

PACKAGES = ("slalom", "torch", "transformers")
LOCK = ".lock"
SHARED_SETTINGS = ("model", "engine", "seed", "preset", "judges")  # the same for all texts of a folder


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides what a run writes."""

    cells: tuple[Cell, ...]
    preset: str = "standard"
    model: str = DEFAULT
    engine: str = "auto"
    seed: int = 0
    judges: str = "ours"
    both: bool = False  # judges read prompt and continuation, and the continuation alone; else what the task says
    study: str | None = None


@dataclass
class Run:
    """A folder of results: its settings, its tasks, and what else is known besides texts and scores."""

    folder: Path
    settings: RunSettings
    tasks: dict[str, Task]  # without prompts and records when read from a folder
    skipped: dict[str, str] = field(default_factory=dict)  # a cell's id → why it has no texts
    judge_info: dict[str, dict[str, Any]] = field(default_factory=dict)  # a judge's name → its model and accuracy
    missing_judges: dict[str, str] = field(default_factory=dict)  # a judge's name → why it did not judge
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def generations(self) -> Path:
        return self.folder / "generations.jsonl"

    @property
    def scores(self) -> Path:
        return self.folder / "scores.jsonl"

    @property
    def units(self) -> Path:
        """What a study measured of the sampling itself, one line for each sampler and prompt."""
        return self.folder / "units.jsonl"

    def save(self) -> None:
        """Write run.json."""
        store.write_json(
            self.folder / "run.json",
            asdict(self.settings)
            | {
                "cells": [cell._asdict() | {"knobs": dict(cell.knobs)} for cell in self.settings.cells],
                "tasks": {
                    name: task.model_dump(exclude={"prompts", "records"}, exclude_none=True)
                    for name, task in self.tasks.items()
                },
                "skipped": self.skipped,
                "judged_by": self.judge_info,
                "missing_judges": self.missing_judges,
                "versions": self.versions,
            },
        )


def read_run(folder: Path) -> Run:
    """The run that an evaluation has written into a folder."""
    saved = store.read_json(folder / "run.json") if folder.is_dir() else None
    if saved is None:
        raise SlalomError(
            f"{folder} holds no evaluation (there is no run.json in it); give a folder made by slalom eval"
        )
    cells = tuple(Cell(**(cell | {"knobs": tuple(cell["knobs"].items())})) for cell in saved["cells"])
    settings = RunSettings(cells, **{name: saved[name] for name in (*SHARED_SETTINGS, "both", "study")})
    tasks = {
        name: Task.model_validate(task | {"prompts": ["-"], "records": [{}]}) for name, task in saved["tasks"].items()
    }
    return Run(
        folder,
        settings,
        tasks,
        saved["skipped"],
        saved["judged_by"],
        saved["missing_judges"],
        saved["versions"],
    )


def start_run(folder: Path, settings: RunSettings, tasks: dict[str, Task]) -> Run:
    """A new run, or one to go on with: the same settings, cells may be added."""
    run = Run(folder, settings, tasks, versions={name: importlib.metadata.version(name) for name in PACKAGES})
    if not (folder / "run.json").exists():
        if any(path.name != LOCK for path in folder.iterdir()):
            raise SlalomError(f"{folder} is there already and holds no evaluation; give a new folder with --out")
        run.save()
        return run
    before = read_run(folder)
    for name in SHARED_SETTINGS:
        old, new = getattr(before.settings, name), getattr(settings, name)
        if old != new:
            raise SlalomError(f"{folder} was begun with {name} {old!r}, not {new!r}; give another folder with --out")
    if before.settings.study != settings.study:
        raise SlalomError(f"{folder} holds another study; give another folder with --out")
    run.settings = replace(
        settings,
        cells=tuple(dict.fromkeys([*before.settings.cells, *settings.cells])),
        both=before.settings.both or settings.both,
    )
    run.judge_info, run.missing_judges = before.judge_info, before.missing_judges
    run.tasks = {name: tasks[name] if name in tasks else load_task(task.source) for name, task in before.tasks.items()}
    run.tasks |= tasks
    run.save()
    return run


@contextmanager
def file_lock(folder: Path) -> Iterator[None]:
    """Make the folder if it is not there, and keep other processes from writing into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK)
        lock.acquire(timeout=0)
    except Timeout:
        raise SlalomError(f"another process is evaluating into {folder}; wait for it or give another --out") from None
    except OSError as error:
        raise SlalomError(f"the folder {folder} cannot be written ({error.strerror}); give another --out") from None
    try:
        yield
    finally:
        lock.release()
