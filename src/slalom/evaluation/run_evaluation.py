"""What to evaluate to a folder of results: write, judge, report. Interrupted, a later call goes on where it stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slalom.errors import SlalomError
from slalom.evaluation import report, studies
from slalom.evaluation.estimates import scipy_bootstrap
from slalom.evaluation.judging import judge_texts
from slalom.evaluation.plan import plan
from slalom.evaluation.progress import OnProgress
from slalom.evaluation.run_folder import RunSettings, file_lock, start_run
from slalom.evaluation.summary import Results, read_results, results_json
from slalom.evaluation.tasks import Task
from slalom.evaluation.writing import write_texts

if TYPE_CHECKING:
    from slalom.api import SteerableModel
    from slalom.evaluation.judges import LoadJudge


TOGETHER = 32  # texts written together, and lost together when a run is killed


def run_evaluation(
    folder: Path,
    settings: RunSettings,
    tasks: list[Task],
    load_lm: Callable[[], SteerableModel],
    judges: dict[str, LoadJudge],
    on_progress: OnProgress,
    anew: bool = False,
) -> dict[str, Any]:
    """Everything that is missing in the folder, and the report; returns the same figures as JSON.

    With `anew`, texts of other prompts or settings than today's are written once more.
    """
    scipy_bootstrap()  # its absence is reported before anything is written
    by_name = {task.name: task for task in tasks}
    if len(by_name) < len(tasks):
        raise SlalomError(f"two tasks have the same name; the names are {', '.join(task.name for task in tasks)}")
    if settings.study in studies.UNIT_MEASURES:
        studies.study_size(settings.preset)  # refused before anything is written
    else:
        for name, prefix in dict.fromkeys((cell.task, cell.prefix) for cell in settings.cells):
            by_name[name].items(by_name[name].size(settings.preset), prefix)
    with file_lock(folder):
        run = start_run(folder, settings, by_name)
        if settings.study in studies.UNIT_MEASURES:
            studies.measure_units(run, load_lm, on_progress)
        else:
            planned = plan(run, TOGETHER)
            write_texts(run, planned, load_lm, on_progress, anew)
            judge_texts(run, planned, judges, on_progress)
        results = read_results(folder)
        report.write(folder, report.title_of([results]), report.blocks_of([results]))
    return results_json(results)


def read_several(folders: list[Path]) -> list[Results]:
    """Several runs to be reported side by side, each named by its folder."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [read_results(folder, name if len(folders) > 1 else "") for folder, name in zip(folders, names, strict=True)]
