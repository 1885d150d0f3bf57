"""A run's texts and scores to the rows of its tables: an estimate for every sampler and metric, or none."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slalom.evaluation import store
from slalom.evaluation.cells import UNSTEERED, Cell
from slalom.evaluation.document import Entry, Mark
from slalom.evaluation.estimates import Case, Difference, Estimate, Values, by_prompt, estimate
from slalom.evaluation.judging import Scores, read_scores
from slalom.evaluation.metrics import METRICS, JudgedText
from slalom.evaluation.run_folder import Run, read_run
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import Reads, Task

MISSING = "—"  # what could not be measured

RecordFilter = Callable[[Record], bool]


class TableRow(NamedTuple):
    """One cell of a run, measured."""

    label: str
    cell: Cell
    texts: int
    estimates: dict[str, Estimate | None]
    values: dict[str, Values]
    judges: dict[str, str]  # a judge's name → its model and revision


class Results(NamedTuple):
    """A run with its texts and scores."""

    run: Run
    records: list[Record]
    scores: Scores
    name: str = ""  # shown with every label when several runs are compared

    def named(self, text: str) -> str:
        """A label or heading; if several runs are compared, with the name of this one."""
        return f"{text} ({self.name})" if self.name else text

    def judges(self) -> dict[str, str]:
        """A judge's name → its model and revision."""
        return {name: f"{info['model']}, {info['revision']}" for name, info in self.run.judge_info.items()}

    def task_names(self) -> list[str]:
        """The tasks with texts."""
        return list(dict.fromkeys(record["task"] for record in self.records))

    def cells(self, task: str) -> list[Cell]:
        """The cells of a task with texts."""
        written = {record["cell"] for record in self.records}
        return [cell for cell in self.run.settings.cells if cell.task == task and cell.id in written]

    def main_cells(self, task: str) -> list[Cell]:
        """Those at strength 1: the rows of the main table. Of an ablation only the one with unchanged knobs."""
        return [cell for cell in self.cells(task) if cell.strength == 1 and not self.ablated(cell)]

    def ablated(self, cell: Cell) -> bool:
        """Whether a study has changed one of its knobs."""
        return self.run.settings.study is not None and bool(cell.knobs)

    def texts(self, cell: Cell) -> list[Record]:
        """A cell's texts."""
        return [record for record in self.records if record["cell"] == cell.id]

    def row(
        self, cell: Cell, metrics: list[str], reads: Reads | None = None, keep: RecordFilter | None = None
    ) -> TableRow:
        """A cell's estimates, of all its texts or of those to keep; judges read what the task says, or `reads`."""
        task = self.run.tasks[cell.task]
        kept = [record for record in self.texts(cell) if keep is None or keep(record)]
        values = {name: self._values(kept, task, name, reads) for name in metrics}
        estimates = {name: estimate(by_prompt(by_case)) for name, by_case in values.items()}
        judges = {name: judge for name, judge in self.judges().items() if name in task.judges}
        return TableRow(self.named(cell.label), cell, len(kept), estimates, values, judges)

    def _values(self, records: list[Record], task: Task, metric: str, reads: Reads | None) -> Values:
        """A metric's values by case."""
        by_case: dict[Case, list[Record]] = defaultdict(list)
        for record in records:
            *_, of_task, _ = record["item"].split("/")  # wish, record, prompt
            by_case[Case(record["prompt"], record["wish"], record["length"], of_task)].append(record)
        return {
            case: METRICS[metric].values([self._judged(record, task, reads) for record in same])
            for case, same in by_case.items()
        }

    def _judged(self, record: Record, task: Task, reads: Reads | None) -> JudgedText:
        by_reads = self.scores.get(record["id"], {})
        scores = {judge: by_reads.get(reads or task.reads.get(judge, "text"), {}).get(judge) for judge in task.judges}
        return JudgedText(
            record["prompt"],
            record["text"],
            record["parts"],
            [constraint["probability"] for constraint in record["constraints"]],
            {judge: value for judge, value in scores.items() if value is not None},
            max(record["seconds"] / record["rows"], 1e-6),
            record["passes"] / record["rows"] if "passes" in record else None,  # older runs did not count
        )


def read_results(folder: Path, name: str = "") -> Results:
    """The results in a folder."""
    run = read_run(folder)
    return Results(run, store.read(run.generations), read_scores(run), name)


def is_own_text(cell: Cell) -> bool:
    """Whether the LM is left alone: neither steered nor told, nor given a prefix that says what is wished."""
    return cell.sampler == UNSTEERED and not cell.told and not cell.prefix


def compare(own: TableRow, other: TableRow, metric: str) -> Difference | None:
    """A metric's paired difference of two rows; none if it rests on a judge that was another model for one of them."""
    if any(own.judges.get(name) != other.judges.get(name) for name in METRICS[metric].judges):
        return None
    return METRICS[metric].compare(own.values[metric], other.values[metric])


def differing_judges(results: list[Results]) -> list[str]:
    """The judges that were not the same model in all runs."""
    judges = [result.judges() for result in results]
    names = dict.fromkeys(name for one in judges for name in one)
    return [name for name in names if len({one[name] for one in judges if name in one}) > 1]


def rank(rows: list[TableRow], metric: str) -> list[Mark]:
    """Each row's mark: best and second, if significantly ahead of all lower ones; the LM's own text has none."""
    higher = METRICS[metric].higher
    if METRICS[metric].shared:
        return [""] * len(rows)
    means = {
        number: estimated.mean
        for number, row in enumerate(rows)
        if not is_own_text(row.cell) and (estimated := row.estimates[metric]) is not None
    }
    order = sorted(means, key=lambda number: means[number], reverse=higher)
    marks: list[Mark] = [""] * len(rows)
    places: list[Mark] = ["best", "second"]
    for number, mark in zip(order[:-1], places, strict=False):
        lower = order[order.index(number) + 1 :]
        leads = [compare(rows[number], rows[other], metric) for other in lower]
        if not all(lead is not None and lead.significant(higher) for lead in leads):
            break
        marks[number] = mark
    return marks


def format_estimate(estimated: Estimate | None, metric: str) -> str:
    """A mean and its standard error; of a skewed metric the median too."""
    if estimated is None:
        return MISSING
    digits = METRICS[metric].digits
    uncertain = estimated.error is not None and not METRICS[metric].shared
    error = f" ± {estimated.error:.{digits}f}" if uncertain else ""
    median = f" (median {estimated.median:.{digits}f})" if METRICS[metric].skewed else ""
    return f"{estimated.mean:.{digits}f}{error}{median}"


def difference_entry(difference: Difference | None, digits: int, ratio: bool = False, shared: bool = False) -> Entry:
    """A difference and its interval, unless texts shared what was measured; of logarithms, the ratio."""
    if difference is None:
        return Entry(MISSING)
    if ratio:
        mean, low, high = (f"{math.exp(value):.2f}" for value in difference[:3])
    else:
        mean, low, high = (f"{value:+.{digits}f}" for value in difference[:3])
    return Entry(mean, note="" if shared else f"{low} to {high}")


def matches_paper(cell: Cell) -> bool:
    """Whether the paper's figures are of this sampler: never told, and of dab, only its preset `paper`."""
    return not cell.knobs and not cell.told and (cell.sampler != "dab" or cell.preset == "paper")


def count_note(estimated: Estimate | None) -> str:
    """Of how many values an estimate is."""
    return "" if estimated is None else f"n {estimated.n:,}"


def results_json(results: Results) -> dict[str, Any]:
    """Every task's estimates, for `--json`."""
    return {
        "folder": str(results.run.folder),
        "study": results.run.settings.study,
        "tasks": {
            task: [
                cell._asdict()
                | {"knobs": dict(cell.knobs), "texts": row.texts}
                | {"metrics": {name: one and one._asdict() for name, one in row.estimates.items()}}
                for cell in results.cells(task)
                for row in [results.row(cell, results.run.tasks[task].columns)]
            ]
            for task in results.task_names()
        },
        "skipped": results.run.skipped,
        "missing_judges": results.run.missing_judges,
    }
