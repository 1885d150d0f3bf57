"""A run's texts and scores to the rows of its tables: an estimate for every sampler and metric, or nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slalom.evaluation import store
from slalom.evaluation.document import Entry, Mark
from slalom.evaluation.estimates import Case, Difference, Estimate, Values, by_prompt, estimate
from slalom.evaluation.harness import Cell, Run, read_run, read_scores
from slalom.evaluation.metrics import METRICS, Scored
from slalom.evaluation.store import Record
from slalom.evaluation.tasks import Reads, Task

NOTHING = "—"  # what could not be measured
UNSTEERED = "none"  # the sampler that does not steer: shown, but never best or second

Keep = Callable[[Record], bool]


class Row(NamedTuple):
    """One cell of a run, measured."""

    label: str
    cell: Cell
    texts: int
    estimates: dict[str, Estimate | None]
    values: dict[str, Values]


class Results(NamedTuple):
    """All there is in a folder."""

    run: Run
    records: list[Record]
    scores: dict[str, Record]
    name: str = ""  # put beside every label when several runs are compared

    def task_names(self) -> list[str]:
        """The tasks with texts."""
        return list(dict.fromkeys(record["task"] for record in self.records))

    def cells(self, task: str) -> list[Cell]:
        """The cells of a task with texts."""
        there = {record["cell"] for record in self.records}
        return [cell for cell in self.run.settings.cells if cell.task == task and cell.id in there]

    def usual(self, task: str) -> list[Cell]:
        """Those at their own strength, with their own knobs: the rows of the main table."""
        return [cell for cell in self.cells(task) if cell.strength == 1 and not cell.knobs]

    def texts(self, cell: Cell) -> list[Record]:
        """A cell's texts."""
        return [record for record in self.records if record["cell"] == cell.id]

    def row(self, cell: Cell, metrics: list[str], reads: Reads | None = None, keep: Keep | None = None) -> Row:
        """A cell's estimates, of all its texts or of some; judged as the task says or by what was read."""
        task = self.run.tasks[cell.task]
        kept = [record for record in self.texts(cell) if keep is None or keep(record)]
        label = f"{cell.label} ({self.name})" if self.name else cell.label
        values = {name: self._values(kept, task, name, reads) for name in metrics}
        estimates = {name: estimate(by_prompt(own)) for name, own in values.items()}
        return Row(label, cell, len(kept), estimates, values)

    def _values(self, records: list[Record], task: Task, metric: str, reads: Reads | None) -> Values:
        """A metric's values by what was asked."""
        together: dict[Case, list[Record]] = defaultdict(list)
        for record in records:
            wish, _, prompt = record["item"].partition("/")
            together[Case(prompt, wish, record["length"])].append(record)
        return {
            case: METRICS[metric].values([self._scored(record, task, reads) for record in own])
            for case, own in together.items()
        }

    def _scored(self, record: Record, task: Task, reads: Reads | None) -> Scored:
        said = self.scores.get(record["id"], {})
        scores = {judge: said.get(reads or task.reads.get(judge, "text"), {}).get(judge) for judge in task.judges}
        return Scored(
            record["prompt"],
            record["text"],
            record["parts"],
            [wish["probability"] for wish in record["constraints"]],
            {judge: value for judge, value in scores.items() if value is not None},
        )


def read_results(folder: Path, name: str = "") -> Results:
    """What a folder holds."""
    run = read_run(folder)
    return Results(run, store.read(run.generations), read_scores(run), name)


def rank(rows: list[Row], metric: str) -> list[Mark]:
    """Each row's mark: of the steering samplers the best and the second, each only if surely ahead of all behind it."""
    higher = METRICS[metric].higher
    means = {
        number: found.mean
        for number, row in enumerate(rows)
        if row.cell.sampler != UNSTEERED and (found := row.estimates[metric]) is not None
    }
    order = sorted(means, key=lambda number: means[number], reverse=higher)
    marks: list[Mark] = [""] * len(rows)
    places: list[Mark] = ["best", "second"]
    for number, mark in zip(order[:-1], places, strict=False):
        behind = order[order.index(number) + 1 :]
        ahead = [METRICS[metric].compare(rows[number].values[metric], rows[other].values[metric]) for other in behind]
        if not all(one is not None and one.sure(higher) for one in ahead):
            break
        marks[number] = mark
    return marks


def shown(found: Estimate | None, metric: str) -> str:
    """A mean and its standard error; of a skewed metric the median too."""
    if found is None:
        return NOTHING
    digits = METRICS[metric].digits
    error = "" if found.error is None else f" ± {found.error:.{digits}f}"
    median = f" (median {found.median:.{digits}f})" if METRICS[metric].skewed else ""
    return f"{found.mean:.{digits}f}{error}{median}"


def difference_entry(found: Difference | None, digits: int, ratio: bool = False) -> Entry:
    """A difference and its interval; of logarithms, the ratio."""
    if found is None:
        return Entry(NOTHING)
    if ratio:
        mean, low, high = (f"{math.exp(value):.2f}" for value in found[:3])
    else:
        mean, low, high = (f"{value:+.{digits}f}" for value in found[:3])
    return Entry(mean, note=f"{low} to {high}")


def as_in_paper(cell: Cell) -> bool:
    """Whether the paper's figures are of this sampler: of dab, only its preset `paper` is the paper's algorithm."""
    return cell.sampler != "dab" or cell.preset == "paper"


def as_json(results: Results) -> dict[str, Any]:
    """Every task's estimates, for a machine."""
    return {
        "folder": str(results.run.folder),
        "study": results.run.settings.study,
        "tasks": {
            task: [
                cell._asdict()
                | {"knobs": dict(cell.knobs), "texts": row.texts}
                | {"metrics": {name: found and found._asdict() for name, found in row.estimates.items()}}
                for cell in results.cells(task)
                for row in [results.row(cell, results.run.tasks[task].columns)]
            ]
            for task in results.task_names()
        },
        "skipped": results.run.skipped,
        "missing_judges": results.run.missing,
    }
