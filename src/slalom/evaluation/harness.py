"""Tasks and samplers to generations and their judges' scores: planned, resumable, the same files whatever happened."""

from __future__ import annotations

import importlib.metadata
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import Item, Reads, Task, constraint_of, load_task

if TYPE_CHECKING:
    from slalom.api import SteerableModel
    from slalom.constraints.constraint import Constraint
    from slalom.evaluation.judges import Maker

PACKAGES = ("slalom", "torch", "transformers")
LOCK = ".lock"
SAME = ("model", "engine", "seed", "preset", "judges")  # what all texts of a folder have in common


class Cell(NamedTuple):
    """One sampler, set up one way, on one task: a row of a table, or a point of a plot."""

    task: str
    sampler: str
    preset: str = "default"
    strength: float = 1.0
    prefix: bool = False
    knobs: tuple[tuple[str, Any], ...] = ()
    told: bool = False  # whether the LM is told the wish as well

    @property
    def id(self) -> str:
        """A name no other cell has."""
        changed = [f"{name}={value}" for name, value in self.knobs]
        return "/".join([self.task, self.label, f"x{self.strength:g}", *changed])

    @property
    def label(self) -> str:
        """The sampler and how it is set up, for people."""
        preset = "" if self.preset == "default" else f":{self.preset}"
        return f"{self.sampler}{preset}{' + prefix' if self.prefix else ''}{' + told' if self.told else ''}"


class Chunk(NamedTuple):
    """What is written in one go: some prompts with the same wish, each as often as asked. All of it is kept or none."""

    key: str
    cell: Cell
    items: list[Item]
    length: int
    samples: int

    def record_ids(self, seed: int) -> list[str]:
        """The names of its texts, prompt by prompt, sample by sample."""
        return [
            f"{self.cell.id}/{item.id}/{self.length}/{seed + sample}"
            for item in self.items
            for sample in range(self.samples)
        ]

    @property
    def tokens(self) -> int:
        """How much it is."""
        return len(self.items) * self.samples * self.length


@dataclass(frozen=True)
class Settings:
    """Everything that decides what a run writes."""

    cells: tuple[Cell, ...]
    preset: str = "standard"
    model: str = "smollm2-135m-instruct"
    engine: str = "auto"
    seed: int = 0
    judges: str = "ours"
    both: bool = False  # judges read prompt and continuation, and the continuation alone; else what the task says
    study: str | None = None


class Now(NamedTuple):
    """How far a run is."""

    what: str
    done: int
    total: int
    left: float | None  # seconds, as far as can be told


Watch = Callable[[Now], None]


@dataclass
class Run:
    """A folder of results: its settings, tasks, texts and scores."""

    folder: Path
    settings: Settings
    tasks: dict[str, Task]  # without prompts and records when read from a folder
    skipped: dict[str, str] = field(default_factory=dict)  # a cell's id → why there is nothing of it
    abouts: dict[str, dict[str, Any]] = field(default_factory=dict)  # a judge's name → who it is
    missing: dict[str, str] = field(default_factory=dict)  # a judge's name → why it did not judge
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def generations(self) -> Path:
        return self.folder / "generations.jsonl"

    @property
    def scores(self) -> Path:
        return self.folder / "scores.jsonl"

    def save(self) -> None:
        """What is known of the run besides texts and scores."""
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
                "judged_by": self.abouts,
                "missing_judges": self.missing,
                "versions": self.versions,
            },
        )


def read_run(folder: Path) -> Run:
    """A folder that an evaluation has written into."""
    said = store.read_json(folder / "run.json") if folder.is_dir() else None
    if said is None:
        raise SlalomError(
            f"{folder} holds no evaluation (there is no run.json in it); give a folder made by slalom eval"
        )
    cells = tuple(Cell(**(cell | {"knobs": tuple(cell["knobs"].items())})) for cell in said["cells"])
    known = {name: said[name] for name in (*SAME, "both", "study")}
    tasks = {
        name: Task.model_validate(task | {"prompts": ["-"], "records": [{}]}) for name, task in said["tasks"].items()
    }
    return Run(
        folder,
        Settings(cells, **known),
        tasks,
        said["skipped"],
        said["judged_by"],
        said["missing_judges"],
        said["versions"],
    )


def start(folder: Path, settings: Settings, tasks: dict[str, Task]) -> Run:
    """A new run, or one to go on with: the same settings, cells may be added."""
    run = Run(folder, settings, tasks, versions={name: importlib.metadata.version(name) for name in PACKAGES})
    if not (folder / "run.json").exists():
        if any(path.name != LOCK for path in folder.iterdir()):
            raise SlalomError(f"{folder} is there already and holds no evaluation; give a new folder with --out")
        run.save()
        return run
    before = read_run(folder)
    for name in SAME:
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
    run.abouts, run.missing = before.abouts, before.missing
    run.tasks = {name: tasks[name] if name in tasks else load_task(task.source) for name, task in before.tasks.items()}
    run.tasks |= tasks
    run.save()
    return run


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """The folder, made if need be, and nobody else writes into it meanwhile."""
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


# The plan


def plan(run: Run, together: int) -> list[Chunk]:
    """All that is to be written, in the order of the final files."""
    return [
        chunk
        for cell in run.settings.cells
        for chunk in chunks(cell, run.tasks[cell.task], run.settings.preset, together)
    ]


def chunks(cell: Cell, task: Task, preset: str, together: int) -> Iterator[Chunk]:
    """A cell's texts: prompts with the same wish together, about so many rows at a time."""
    size = task.size(preset)
    alike: dict[str, list[Item]] = defaultdict(list)
    for item in task.items(size, cell.prefix):
        alike[json.dumps(item.parts, sort_keys=True)].append(item)
    step = max(1, together // size.samples)
    for length in size.lengths:
        for items in alike.values():
            for start in range(0, len(items), step):
                some = items[start : start + step]
                yield Chunk(f"{cell.id}/{some[0].id}/{length}", cell, some, length, size.samples)


# Writing


def generate(run: Run, planned: list[Chunk], lm: Callable[[], SteerableModel], watch: Watch) -> None:
    """Write every chunk that is not there yet; then put the file into the plan's order."""
    done = finished_chunks(run, planned)
    clock = Clock()
    for chunk in planned:
        if chunk.key in done:
            clock.learn(chunk, done[chunk.key][0]["seconds"])
    left = [chunk for chunk in planned if chunk.key not in done]
    loaded: SteerableModel | None = None
    wishes: dict[str, Constraint] = {}
    for number, chunk in enumerate(left):
        if chunk.cell.id in run.skipped:
            continue
        now = Now(
            f"{chunk.cell.task}: {chunk.cell.label}", len(done), len(planned), clock.left(left[number:], run.skipped)
        )
        watch(now)
        loaded = loaded or lm()
        wish = json.dumps(chunk.items[0].parts)
        try:
            if wish not in wishes:
                wishes[wish] = constraint_of(chunk.items[0].parts)
            records = written(loaded, chunk, wishes[wish], run)
        except SlalomError as error:
            run.skipped[chunk.cell.id] = str(error)
            run.save()
            continue
        store.append(run.generations, records)
        done[chunk.key] = records
        clock.learn(chunk, records[0]["seconds"])
    if not done:
        raise SlalomError(next(iter(run.skipped.values()), "nothing to evaluate"))
    in_order = [record for chunk in planned for record in done.get(chunk.key, [])]
    if store.read(run.generations) != in_order:
        store.rewrite(run.generations, in_order)


def finished_chunks(run: Run, planned: list[Chunk]) -> dict[str, list[Record]]:
    """The chunks that are there in full. What a kill left of another is taken off the file."""
    records = store.read(run.generations)
    by_chunk: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_chunk[record["chunk"]].append(record)
    asked = {chunk.key: chunk.record_ids(run.settings.seed) for chunk in planned}
    for key, own in by_chunk.items():
        if unknown := {record["id"] for record in own} - set(asked.get(key, [])):
            raise SlalomError(
                f"{run.generations} holds texts that are not planned now ({min(unknown)}); "
                "was a task changed meanwhile? Give another folder with --out"
            )
    whole = {key: own for key, own in by_chunk.items() if len(own) == len(asked[key])}
    if len(whole) < len(by_chunk):
        store.rewrite(run.generations, [record for record in records if record["chunk"] in whole])
    return whole


def written(lm: SteerableModel, chunk: Chunk, wish: Constraint, run: Run) -> list[Record]:
    """One chunk's records: texts with all that is needed to write them again."""
    from slalom.decoding.presets import preset_for

    cell, settings = chunk.cell, run.settings
    how = preset_for(cell.preset, wish, lm.name, knobs=dict(cell.knobs), sampler=cell.sampler)
    # Strengths are factors here; a sampler with a strength of its own takes it as it is.
    strength = None if cell.strength == 1 else cell.strength * getattr(how.sampler, "strength", 1.0)
    if strength is not None:
        how = replace(how, sampler=how.sampler.stronger(strength))
    out = lm.steer(
        [item.prefix + item.prompt for item in chunk.items],
        wish,
        length=chunk.length,
        samples=chunk.samples,
        seed=settings.seed,
        sampler=cell.sampler,
        preset=cell.preset,
        strength=strength,
        knobs=dict(cell.knobs),
        tell=cell.told,
    )
    owners = [item for item in chunk.items for _ in range(chunk.samples)]
    return [
        {
            "id": name,
            "chunk": chunk.key,
            "task": cell.task,
            "cell": cell.id,
            "item": item.id,
            "wish": item.wish,
            "topic": item.topic,
            "parts": item.parts,
            "prefix": item.prefix,
            "prompt": item.prompt,
            "text": row.text,
            "length": chunk.length,
            "seed": row.seed,
            "score": row.score,
            "constraints": [one._asdict() for one in row.constraints],
            "perplexity": row.perplexity,
            "told": row.told,
            "told_perplexity": row.told_perplexity,
            "steps": row.steps,
            "sampler": cell.sampler,
            "preset": cell.preset,
            "strength": cell.strength,
            "knobs": asdict(how.sampler),  # type: ignore[call-overload]
            "most_steps": how.steps,
            "choice": how.choice,
            "temperature": how.temperature,
            "top_p": how.top_p,
            "model": out.model,
            "engine": out.engine,
            "versions": run.versions,
            "seconds": round(out.seconds, 3),  # of the whole chunk
            "rows": len(out.rows),  # in it
        }
        for name, item, row in zip(chunk.record_ids(settings.seed), owners, out.rows, strict=True)
    ]


class Clock:
    """Seconds a token takes each sampler, and so the time that is left."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = defaultdict(int)
        self.seconds: dict[str, float] = defaultdict(float)

    def learn(self, chunk: Chunk, seconds: float) -> None:
        """What one chunk took."""
        self.tokens[chunk.cell.sampler] += chunk.tokens
        self.seconds[chunk.cell.sampler] += seconds

    def left(self, remaining: list[Chunk], skipped: dict[str, str]) -> float | None:
        """Seconds for the rest; a sampler not yet seen is taken to be as fast as the others together."""
        if not self.tokens:
            return None
        usual = sum(self.seconds.values()) / sum(self.tokens.values())
        pace = {name: self.seconds[name] / self.tokens[name] for name in self.tokens}
        going = [chunk for chunk in remaining if chunk.cell.id not in skipped]
        return sum(chunk.tokens * pace.get(chunk.cell.sampler, usual) for chunk in going)


# Judging


def judge(run: Run, planned: list[Chunk], makers: dict[str, Maker], watch: Watch) -> None:
    """Every text's scores by every judge its task names, judge by judge; then one line a text, in the plan's order."""
    texts = defaultdict(list)
    for record in store.read(run.generations):
        texts[record["chunk"]].append(record)
    found = read_scores(run)
    wanted = [name for name in makers if any(name in task.judges for task in run.tasks.values())]
    for name in wanted:
        judge_by(name, run, planned, dict(texts), found, makers[name], watch)
    in_order = [{"id": record["id"], **found.get(record["id"], {})} for chunk in planned for record in texts[chunk.key]]
    if store.read(run.scores) != in_order:
        store.rewrite(run.scores, in_order)


def judge_by(
    name: str,
    run: Run,
    planned: list[Chunk],
    texts: dict[str, list[Record]],
    found: dict[str, Record],
    maker: Maker,
    watch: Watch,
) -> None:
    """One judge's scores of what it has not seen yet, chunk by chunk; if it cannot be had, the reason is noted."""
    todo: list[tuple[Chunk, Reads]] = []
    for chunk in planned:
        for reads in kinds(run.tasks[chunk.cell.task], name, run.settings.both):
            own = texts.get(chunk.key, [])
            if any(name not in found.get(record["id"], {}).get(reads, {}) for record in own):
                todo.append((chunk, reads))
    if not todo:
        return
    from slalom.evaluation.judges import Reading

    try:
        watch(Now(f"judging: loading {name}", 0, len(todo), None))
        who = maker()
    except SlalomError as error:
        run.missing[name] = str(error)
        run.save()
        return
    run.missing.pop(name, None)
    run.abouts[name] = who.about._asdict()
    run.save()
    started = time.perf_counter()
    for number, (chunk, reads) in enumerate(todo):
        left = (time.perf_counter() - started) / number * (len(todo) - number) if number else None
        watch(Now(f"judging: {name}", number, len(todo), left))
        own = texts[chunk.key]
        references = {item.id: item.references for item in chunk.items}
        readings = [Reading(record["prompt"], record["text"], references[record["item"]]) for record in own]
        values = who.score(readings, reads)
        lines = [
            {"id": record["id"], reads: {name: None if value is None else float(f"{value:.6g}")}}
            for record, value in zip(own, values, strict=True)
        ]
        store.append(run.scores, lines)
        for line in lines:
            _join(found, line)


def kinds(task: Task, judge: str, both: bool) -> list[Reads]:
    """What a judge reads of a task's texts."""
    if judge not in task.judges:
        return []
    return ["text", "continuation"] if both else [task.reads.get(judge, "text")]


def read_scores(run: Run) -> dict[str, Record]:
    """A text's id → what it was shown as → the judges' scores."""
    found: dict[str, Record] = {}
    for line in store.read(run.scores):
        _join(found, line)
    return found


def _join(found: dict[str, Record], line: Record) -> None:
    own = found.setdefault(line["id"], {})
    for reads, scores in line.items():
        if reads != "id":
            own[reads] = own.get(reads, {}) | scores
