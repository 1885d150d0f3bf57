"""An evaluation as it is typed, on the command line or in a queue's file, to its settings and tasks, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from slalom.errors import SlalomError
from slalom.evaluation.cells import UNSTEERED, parse_samplers, task_cells
from slalom.evaluation.run_folder import RunSettings
from slalom.evaluation.studies import STUDIES, study_cells
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
    from slalom.constraints.custom import ANYTHING
    from slalom.decoding.presets import preset_for

    engine, name = known_engine(typed.engine), typed.model or DEFAULT
    study = next((task for task in typed.tasks if task in STUDIES), None)
    if study is not None:
        if len(typed.tasks) > 1:
            others = ", ".join(set(typed.tasks) - {study})
            raise SlalomError(f"{study} is a study and stands alone; leave {others} out")
        if typed.knobs:
            raise SlalomError(f"{study} is a study and sets knobs itself; leave {', '.join(typed.knobs)} out")
        cells, tasks = study_cells(study, parse_samplers(typed.samplers, STUDIES[study].samplers), name)
    else:
        tasks = [load_task(task) for task in dict.fromkeys(typed.tasks)]
        for wish in (wish for task in tasks for wish in task.wishes):
            check_parts(wish.parts)
        samplers = parse_samplers(typed.samplers or "climb")
        for one in samplers:
            if one.sampler != UNSTEERED:
                preset_for(one.preset, ANYTHING, name, knobs=typed.knobs, sampler=one.sampler)  # refuses what is wrong
        knobs = tuple(typed.knobs.items())
        cells = task_cells(tasks, samplers, factors(typed.strengths), (typed.prefix,), knobs)
    settings = RunSettings(tuple(cells), typed.preset, name, engine, typed.seed, typed.judges, typed.both, study)
    return CheckedRun(settings, tasks)


def factors(typed: str) -> list[float]:
    """Strengths as numbers."""
    try:
        listed = list(dict.fromkeys(float(word) for word in typed.split(",")))
    except ValueError:
        raise SlalomError(f"strengths is {typed!r}; it must be numbers, comma-separated") from None
    if min(listed) < 0:
        raise SlalomError(f"strengths is {typed!r}; each must be at least 0")
    return listed
