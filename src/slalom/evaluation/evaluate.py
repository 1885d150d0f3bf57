"""What to evaluate to a folder of results: write, judge, report. All of it can be killed and started again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slalom.errors import SlalomError
from slalom.evaluation import harness, report, studies
from slalom.evaluation.estimates import scipy_bootstrap
from slalom.evaluation.harness import Cell, Settings, Watch
from slalom.evaluation.studies import STUDIES
from slalom.evaluation.summary import UNSTEERED, Results, as_json, read_results
from slalom.evaluation.tasks import Task, load_task

if TYPE_CHECKING:
    from slalom.decoding.steer import SteerableModel
    from slalom.evaluation.judges import Maker


def task_cells(
    tasks: list[Task], samplers: list[str], strengths: list[float], prefixes: tuple[bool, ...] = (False,)
) -> list[Cell]:
    """Every task by every sampler at every strength; what does not steer has but one."""
    return [
        Cell(task.name, *sampler_and_preset(name), strength, prefix, told=is_told(name))
        for task in tasks
        for prefix in prefixes
        for name in samplers
        for strength in ([1.0] if sampler_and_preset(name)[0] == UNSTEERED else strengths)
    ]


TOLD = "+told"  # after a sampler's name: the LM is told the wish as well


def is_told(given: str) -> bool:
    """Whether a sampler's name says that the LM is told the wish."""
    return given.endswith(TOLD)


def sampler_and_preset(given: str) -> tuple[str, str]:
    """`dab`, `dab:paper` or `dab:paper+told` to a sampler's name and its preset's."""
    from slalom.constraints import Custom
    from slalom.decoding import SAMPLERS

    sampler, _, preset = given.removesuffix(TOLD).partition(":")
    if sampler not in SAMPLERS:
        raise SlalomError(f"unknown sampler {sampler!r}; choose from {', '.join(SAMPLERS)}")
    presets = SAMPLERS[sampler].presets(Custom(lambda prompt, text: True, "anything"))
    if preset and preset not in presets:
        raise SlalomError(f"unknown preset {preset!r} of {sampler}; choose from {', '.join(presets)}")
    return sampler, preset or "default"


def known_samplers(given: str, otherwise: tuple[str, ...] = ()) -> list[str]:
    """Names from a comma-separated list; `all` are all there are, nothing those of the study that there are."""
    from slalom.decoding import SAMPLERS

    if given == "all":
        return list(SAMPLERS)
    listed = [name.strip() for name in given.split(",") if name.strip()]
    if not listed:
        return [name for name in otherwise if name.partition(":")[0] in SAMPLERS]
    for name in listed:
        sampler_and_preset(name)
    return list(dict.fromkeys(listed))


def study_cells(study: str, samplers: list[str], model: str) -> tuple[list[Cell], list[Task]]:
    """What a study has to look at."""
    if study == "ablation":
        cells = [cell for name in samplers for cell in studies.ablation_cells(*sampler_and_preset(name), model)]
        return cells, [load_task(studies.TASK)]
    if study == "prompted":
        task = load_task("keywords")
        return task_cells([task], samplers, [1.0], (False, True)), [task]
    return task_cells([load_task(studies.TASK)], samplers, [1.0]), [load_task(studies.TASK)]


def evaluate(
    folder: Path,
    settings: Settings,
    tasks: list[Task],
    lm: Callable[[], SteerableModel],
    makers: dict[str, Maker],
    watch: Watch,
) -> dict[str, Any]:
    """Everything that is missing in the folder, and the report; the same figures for a machine."""
    from slalom.decoding.steer import BATCH

    scipy_bootstrap()  # its absence is reported before anything is written
    by_name = {task.name: task for task in tasks}
    if len(by_name) < len(tasks):
        raise SlalomError(f"two tasks have the same name; the names are {', '.join(task.name for task in tasks)}")
    for name, prefix in dict.fromkeys((cell.task, cell.prefix) for cell in settings.cells):
        by_name[name].items(by_name[name].size(settings.preset), prefix)  # refused before anything is written
    with harness.alone(folder):
        run = harness.start(folder, settings, by_name)
        if settings.study in studies.MEASURES:
            studies.measure_units(run, lm, watch)
        else:
            planned = harness.plan(run, BATCH)
            harness.generate(run, planned, lm, watch)
            harness.judge(run, planned, makers, watch)
        results = read_results(folder)
        report.write(folder, report.title_of([results]), report.blocks_of([results]))
    return as_json(results)


def compare(folders: list[Path]) -> list[Results]:
    """Several runs side by side, each named by its folder."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [read_results(folder, name if len(folders) > 1 else "") for folder, name in zip(folders, names, strict=True)]


__all__ = ["STUDIES", "compare", "evaluate", "known_samplers", "study_cells", "task_cells"]
