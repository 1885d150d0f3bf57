"""A task file to the texts it asks for: prompts, wishes, lengths, samples; and the constraint of each."""

from __future__ import annotations

import functools
import inspect
import json
import operator
import tomllib
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slalom.errors import SlalomError
from slalom.evaluation.metrics import METRICS

if TYPE_CHECKING:
    from slalom.constraints.constraint import Constraint

Reads = Literal["text", "continuation"]  # what a judge is shown: prompt and continuation, or the continuation alone
Part = dict[str, Any]  # a constraint by its `kind`, its arguments, and a `weight` if it is not 1
EVERYDAY = ("everyday", "everyday-words", "everyday-several")  # on prompts not used for tuning
NAMES = ("sentiment", "detox", "keywords", "commongen", "compose", *EVERYDAY)
JUDGES = ("sentiment", "sentiment-yelp", "sentiment-sst2", "toxicity", "acceptability", "perplexity", "bertscore")


class Item(NamedTuple):
    """One prompt with one wish."""

    id: str
    wish: str
    prompt: str
    prefix: str  # read by the LM before the prompt, not by the judges
    parts: list[Part]
    references: list[str]
    topic: str | None


class Wish(BaseModel):
    """What some of a task's texts should be like: one or several constraints."""

    model_config = ConfigDict(extra="forbid")

    name: str
    parts: list[Part] = Field(min_length=1)


class TaskSize(BaseModel):
    """How much of the task to do. What is not named is done whole; of a longer list, evenly spaced items are taken."""

    model_config = ConfigDict(extra="forbid")

    prompts: int | None = Field(None, ge=1)
    records: int | None = Field(None, ge=1)
    wishes: list[str] | None = None
    samples: int = Field(ge=1)
    lengths: list[int] = Field(min_length=1)
    temperature: float | None = Field(None, ge=0)  # of all samplers' rollouts; what their presets say if left out
    top_p: float | None = Field(None, gt=0, le=1)  # the same for the nucleus


class PaperRow(BaseModel):
    """What the paper reports of one sampler: a metric's mean, and its standard error if given."""

    model_config = ConfigDict(extra="forbid")

    sampler: str
    prefix: bool = False
    values: dict[str, list[float]]


class Task(BaseModel):
    """A task file. Strings in a wish's parts may be `$field`, a field of the record at hand."""

    model_config = ConfigDict(extra="forbid")

    name: str
    what: str
    source: str = ""  # the name or path it was loaded by
    prompts: list[str] = Field(min_length=1)
    records: list[dict[str, Any]] = [{}]
    wishes: list[Wish] = Field(min_length=1)
    prefix: str | None = None
    judges: list[str]
    reads: dict[str, Reads] = {}
    columns: list[str] = Field(min_length=1)
    control: str  # the metric plotted against perplexity
    warning: str | None = None  # shown before example texts
    presets: dict[str, TaskSize]
    paper_note: str | None = None
    paper: list[PaperRow] = []

    @model_validator(mode="after")
    def _known_names(self) -> Task:
        checks = {
            "metric": ([*self.columns, self.control, *(name for row in self.paper for name in row.values)], METRICS),
            "judge": ([*self.judges, *self.reads], JUDGES),
            "wish": (
                [name for size in self.presets.values() for name in size.wishes or []],
                [wish.name for wish in self.wishes],
            ),
        }
        for what, (given, known) in checks.items():
            for name in given:
                if name not in known:
                    raise ValueError(f"unknown {what} {name!r}; choose from {', '.join(known)}")
        return self

    def size(self, preset: str) -> TaskSize:
        """A preset by name."""
        if preset not in self.presets:
            raise SlalomError(f"unknown preset {preset!r} of {self.name}; choose from {', '.join(self.presets)}")
        return self.presets[preset]

    def items(self, size: TaskSize, prefixed: bool = False) -> list[Item]:
        """Every wish with every record with every prompt, as many as the size says."""
        if prefixed and self.prefix is None:
            raise SlalomError(f"the task {self.name} has no prefix; leave --prefix out")
        records, prompts = list(enumerate(self.records)), list(enumerate(self.prompts))
        return [
            Item(
                id=f"{wish.name}/{r}/{p}",
                wish=wish.name,
                prompt=prompt,
                prefix=_fill_template(self.prefix, record) if prefixed and self.prefix else "",
                parts=[_with_fields(part, record) for part in wish.parts],
                references=record.get("references", []),
                topic=record.get("topic"),
            )
            for wish in self.wishes
            if size.wishes is None or wish.name in size.wishes
            for r, record in evenly_spaced(records, size.records)
            for p, prompt in evenly_spaced(prompts, size.prompts)
        ]


def evenly_spaced(items: list[Any], count: int | None) -> list[Any]:
    """`count` items of a list, evenly spaced from its beginning on; all of them for none."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def load_task(name: str) -> Task:
    """A shipped task by name, or a file of one's own."""
    if name in NAMES:
        return _read_task(Path(str(files("slalom.evaluation") / "data" / "tasks" / f"{name}.toml")), name)
    if name.endswith(".toml"):
        return _read_task(Path(name), name)
    raise SlalomError(f"unknown task {name!r}; choose from {', '.join(NAMES)}, or give a file of yours, my-task.toml")


def _read_task(path: Path, source: str) -> Task:
    """A checked task; `prompts` and `records` may name files beside it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlalomError(f"there is no task file {path}") from None
    except (OSError, ValueError) as error:
        raise SlalomError(f"{path} cannot be read as TOML ({error})") from None
    if isinstance(content.get("prompts"), str):
        content["prompts"] = [line for line in _lines(path, content["prompts"]) if line.strip()]
    if isinstance(content.get("records"), str):
        content["records"] = _read_records(path, content["records"])
    try:
        task = Task.model_validate(content | {"source": source})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise SlalomError(
            f"{path}{f', {where}' if where else ''}: {first['msg'].removeprefix('Value error, ')}"
        ) from None
    _check_names(path, task)
    _check_fields(path, task)
    return task


def _check_names(path: Path, task: Task) -> None:
    """Texts are found again by their wish's name and their length: refuse what would make two of them one."""
    names = [wish.name for wish in task.wishes]
    for name in names:
        if names.count(name) > 1:
            raise SlalomError(f"{path}: two wishes are called {name!r}; each needs a name of its own")
        if "/" in name:
            raise SlalomError(f"{path}: the wish {name!r} has a / in its name; use another character")
    for preset, size in task.presets.items():
        for length in size.lengths:
            if size.lengths.count(length) > 1:
                raise SlalomError(f"{path}: the preset {preset} has the length {length} twice; name it once")


def _check_fields(path: Path, task: Task) -> None:
    """Refuse a record without a field that a wish or the prefix names."""
    for number, record in enumerate(task.records, 1):
        try:
            for wish in task.wishes:
                for part in wish.parts:
                    _with_fields(part, record)
            _fill_template(task.prefix or "", record)
        except KeyError as error:
            known = ", ".join(record) or "none"
            raise SlalomError(
                f"{path}: record {number} has no field {error}; its fields are {known} (a $ in a prefix is written $$)"
            ) from None
        except ValueError:
            raise SlalomError(
                f"{path}: the prefix {task.prefix!r} has a $ that no field's name follows; write $$ for a $"
            ) from None


def _read_records(task: Path, name: str) -> list[Any]:
    """The records of a file of JSON lines; blank lines are passed over."""
    records = []
    for number, line in enumerate(_lines(task, name), 1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise SlalomError(f"{task} names the file {name}, whose line {number} is no JSON ({error})") from None
    return records


def _lines(task: Path, name: str) -> list[str]:
    try:
        return (task.parent / name).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise SlalomError(f"{task} names the file {name}, which cannot be read ({error})") from None


def _with_fields(part: Part, record: dict[str, Any]) -> Part:
    """A wish's part with `$field` replaced by the record's value, whatever its type."""
    return {
        name: record[value[1:]] if isinstance(value, str) and value.startswith("$") else value
        for name, value in part.items()
    }


def _fill_template(template: str, record: dict[str, Any]) -> str:
    values = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in record.items()
    }
    return Template(template).substitute(values)


def constraint_of(parts: list[Part]) -> Constraint:
    """The weighted sum of a wish's parts."""
    return functools.reduce(operator.add, map(_weighted, parts))


def check_parts(parts: list[Part]) -> None:
    """Refuse constraints that nobody knows, and arguments they do not take; nothing is loaded."""
    for part in parts:
        _class_of(part)


def _class_of(part: Part) -> tuple[type[Constraint], dict[str, Any]]:
    """The constraint's class, and the arguments for it."""
    from slalom.constraints import CONSTRAINTS

    arguments = {name: value for name, value in part.items() if name not in ("kind", "weight")}
    kind = part.get("kind")
    if kind not in CONSTRAINTS:
        raise SlalomError(f"unknown kind of constraint {kind!r}; choose from {', '.join(CONSTRAINTS)}")
    try:
        inspect.signature(CONSTRAINTS[kind]).bind(**arguments)
    except TypeError as error:
        raise _cannot_be_made(part, error) from None
    return CONSTRAINTS[kind], arguments


def _weighted(part: Part) -> Constraint:
    made, arguments = _class_of(part)
    try:
        constraint = made(**arguments)
    except TypeError as error:
        raise _cannot_be_made(part, error) from None
    return constraint if part.get("weight", 1) == 1 else part["weight"] * constraint


def _cannot_be_made(part: Part, error: TypeError) -> SlalomError:
    return SlalomError(f"no constraint can be made from {part} ({error})")
