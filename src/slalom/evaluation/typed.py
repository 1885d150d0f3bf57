"""An evaluation as it is typed, on the command line or in a queue's file, to its settings and tasks, checked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from slalom.errors import SlalomError
from slalom.evaluation.cells import UNSTEERED, SamplerName, parse_samplers, task_cells
from slalom.evaluation.run_folder import RunSettings
from slalom.evaluation.studies import STUDIES, UNIT_MEASURES, study_cells
from slalom.evaluation.tasks import Task, check_parts, load_task


class TypedRun(BaseModel):
    """What to evaluate: the arguments of `slalom eval`, its folder left out."""

    model_config = ConfigDict(extra="forbid")

    tasks: list[str] = Field(min_length=1)
    samplers: str = ""
    preset: str = "quick"
    strengths: str = "1"
    knobs: dict[str, Any] = {}
    prefix: bool = False
    judges: str = "ours"
    both: bool = False
    model: str | None = None
    engine: str = "auto"
    seed: int = Field(0, ge=0)


class CheckedRun(NamedTuple):
    """The same, ready to run."""

    settings: RunSettings
    tasks: list[Task]


def checked(typed: TypedRun) -> CheckedRun:
    """Settings and tasks; names that nobody knows are refused with a SlalomError."""
    from slalom.backbone.engines import known_engine
    from slalom.backbone.names import DEFAULT

    engine, name = known_engine(typed.engine), typed.model or DEFAULT
    study = next((task for task in typed.tasks if task in STUDIES), None)
    if study is not None:
        _check_study(study, typed)
        cells, tasks = study_cells(study, parse_samplers(typed.samplers, STUDIES[study].samplers), name)
    else:
        tasks = [load_task(task) for task in dict.fromkeys(typed.tasks)]
        names = [task.name for task in tasks]
        if twice := [task for task in names if names.count(task) > 1]:
            raise SlalomError(f"two tasks are called {twice[0]!r}; give each a name of its own")
        for wish in (wish for task in tasks for wish in task.wishes):
            check_parts(wish.parts)
        samplers = parse_samplers(typed.samplers or "climb")
        knobs: dict[str, Any] = {}
        for one in samplers:
            if one.sampler != UNSTEERED:
                knobs = _knobs_of(one, typed.knobs, name)  # the same for all samplers that have them
        cells = task_cells(tasks, samplers, factors(typed.strengths), (typed.prefix,), tuple(knobs.items()))
    settings = RunSettings(tuple(cells), typed.preset, name, engine, typed.seed, typed.judges, typed.both, study)
    return CheckedRun(settings, tasks)


def _check_study(study: str, typed: TypedRun) -> None:
    """Refuse what a study does not do, or decides itself."""
    if len(typed.tasks) > 1:
        others = ", ".join(set(typed.tasks) - {study})
        raise SlalomError(f"{study} is a study and stands alone; leave {others} out")
    given = {"knobs": typed.knobs, "strengths": factors(typed.strengths) != [1.0], "prefix": typed.prefix}
    for name, is_given in given.items():
        if is_given:
            raise SlalomError(f"{study} is a study and sets {name} itself; leave {name} out")
    judging = {"judges": typed.judges != "ours", "both": typed.both}
    for name, is_given in judging.items():
        if is_given and study in UNIT_MEASURES:
            raise SlalomError(f"{study} judges no texts; leave {name} out")


def _knobs_of(one: SamplerName, given: dict[str, Any], lm: str) -> dict[str, Any]:
    """A sampler's knobs in the types of their fields, whether a command line or a file gave them, checked."""
    from slalom.constraints.custom import ANYTHING
    from slalom.decoding.presets import preset_for

    try:
        preset = preset_for(one.preset, ANYTHING, lm, knobs=given, sampler=one.sampler)
    except SlalomError as error:
        raise SlalomError(f"{one.sampler}: {error}") from None
    values = asdict(preset.sampler) | asdict(preset.objective)  # type: ignore[call-overload]
    return {name: values[name] for name in given}


def factors(typed: str) -> list[float]:
    """Strengths as numbers."""
    try:
        listed = list(dict.fromkeys(float(word) for word in typed.split(",")))
    except ValueError:
        raise SlalomError(f"strengths is {typed!r}; it must be numbers, comma-separated") from None
    if min(listed) < 0:
        raise SlalomError(f"strengths is {typed!r}; each must be at least 0")
    return listed
