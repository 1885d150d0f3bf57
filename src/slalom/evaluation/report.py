"""Measured runs to a report: tables, intervals, plots, the paper's figures beside ours, examples, who judged."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from slalom.evaluation import plots, store
from slalom.evaluation.document import (
    Block,
    Bullets,
    Command,
    Entry,
    Example,
    Figure,
    Heading,
    Paragraph,
    Table,
    html,
    markdown,
)
from slalom.evaluation.estimates import FEWEST_PROMPTS, Estimate
from slalom.evaluation.harness import Cell, Run
from slalom.evaluation.metrics import METRICS
from slalom.evaluation.store import Record
from slalom.evaluation.study_report import ablation, about_study, units
from slalom.evaluation.summary import NOTHING, UNSTEERED, Results, Row, as_in_paper, difference_entry, rank, shown
from slalom.evaluation.tasks import Reads, Task, spread

DIVERSITY = ["distinct-texts", "distinct-1", "distinct-2", "distinct-3", "self-bleu"]
EXAMPLES = 3  # prompts shown per task


def write(folder: Path, title: str, blocks: list[Block]) -> None:
    """report.md with its figures, and report.html, which needs nothing else."""
    for block in blocks:
        if isinstance(block, Figure):
            store.write_text(folder / "figures" / f"{block.name}.svg", block.svg + "\n")
    store.write_text(folder / "report.md", markdown(blocks))
    store.write_text(folder / "report.html", html(title, blocks))


def title_of(results: list[Results]) -> str:
    """What a report is about."""
    studies = [one.run.settings.study for one in results if one.run.settings.study]
    names = studies or list(dict.fromkeys(task for one in results for task in one.task_names()))
    return f"Slalom: {', '.join(names)}"


def blocks_of(results: list[Results]) -> list[Block]:
    """The whole report, of one run or of several side by side."""
    blocks: list[Block] = [Heading(title_of(results), 1)]
    for one in results:
        blocks += about_run(one)
    blocks.append(
        Paragraph(
            "Figures are means ± standard errors; a few texts can make a mean of perplexities, so the median stands "
            "beside it. Of the samplers that steer, the best figure of a column is bold and the second underlined, but "
            "only where the 95 % interval of the paired difference to every sampler behind it leaves 0 out, over "
            f"{FEWEST_PROMPTS} prompts or more. {NOTHING} is what could not be measured."
        )
    )
    for name in dict.fromkeys(task for one in results for task in one.task_names()):
        blocks += about_task(name, [one for one in results if name in one.task_names()])
    for one in results:
        blocks += about_study(one)
    blocks += about_judges(results)
    blocks += about_missing(results)
    blocks += definitions(results)
    return blocks + about_speed(results)


# One run


def about_run(results: Results) -> list[Block]:
    """What was run, and how to run it again."""
    settings = results.run.settings
    versions = ", ".join(f"{name} {version}" for name, version in results.run.versions.items())
    engines = ", ".join(dict.fromkeys(record["engine"] for record in [*results.records, *units(results.run)]))
    if "openvino" in engines:
        engines += " (torch for samplers that cannot use it)"
    named = f"{results.name}: " if results.name else ""
    told = f"{named}{settings.model} on {engines or settings.engine}, preset {settings.preset}, seed {settings.seed}"
    texts = f", {len(results.records):,} texts" if results.records else ""
    return [Paragraph(f"{told}{texts} ({versions})."), Command(command_of(results.run))]


def command_of(run: Run) -> str:
    """What to type to have this run again."""
    settings = run.settings
    cells = settings.cells
    strengths = sorted({cell.strength for cell in cells})
    asked = [settings.study] if settings.study else [run.tasks[cell.task].source or cell.task for cell in cells]
    words = ["slalom eval", *dict.fromkeys(asked)]
    words += ["--samplers", ",".join(dict.fromkeys(sampler_of(cell) for cell in cells))]
    words += ["--preset", settings.preset, "--model", settings.model, "--engine", settings.engine]
    words += ["--seed", str(settings.seed), "--judges", settings.judges]
    if strengths != [1.0]:
        words += ["--strengths", ",".join(f"{strength:g}" for strength in strengths)]
    if any(cell.prefix for cell in cells) and not settings.study:
        words.append("--prefix")
    if settings.both:
        words.append("--both")
    return " ".join([*words, "--out", run.folder.resolve().name])


def sampler_of(cell: Cell) -> str:
    """A sampler as it is named on the command line."""
    preset = "" if cell.preset == "default" else f":{cell.preset}"
    return f"{cell.sampler}{preset}{'+told' if cell.told else ''}"


# One task


def about_task(name: str, results: list[Results]) -> list[Block]:
    """A task's tables, plot and examples."""
    task = results[0].run.tasks[name]
    blocks: list[Block] = [Heading(name), Paragraph(task.what)]
    blocks += main_table(task, results)
    blocks += intervals(task, results)
    blocks += paired_differences(task, results)
    blocks += front(task, results)
    blocks += split_tables(task, results)
    blocks += read_otherwise(task, results)
    diverse = usual_rows(task, results, DIVERSITY)
    if any(found for row in diverse for found in row.estimates.values()):
        caption = "How different the continuations of one prompt are."
        blocks.append(metric_table(columns_of(diverse, DIVERSITY), caption))
    for one in results[:1]:
        blocks += ablation(task, one)
        blocks += examples(task, one)
    return blocks


def usual_rows(
    task: Task, results: list[Results], metrics: list[str], reads: Reads | None = None, **only: object
) -> list[Row]:
    """A row for every sampler of every run, of all texts or only of those with these fields."""
    return [
        one.row(cell, metrics, reads, lambda record: all(record[name] == value for name, value in only.items()))
        for one in results
        for cell in one.usual(task.name)
    ]


def main_table(task: Task, results: list[Results]) -> list[Block]:
    """Every column of the task, with the paper's own figures below ours."""
    rows = usual_rows(task, results, task.columns)
    noted = any(paper_figure(task, row.cell, metric) for row in rows for metric in task.columns)
    caption = "Smaller: the paper's own figures. " + (task.paper_note or "") if noted else ""
    blocks: list[Block] = [metric_table(columns_of(rows, task.columns), caption, task)]
    if any(row.cell.sampler == UNSTEERED for row in rows):
        blocks.append(Paragraph(f"{UNSTEERED} is the model's own text, for comparison; it is not ranked."))
    return blocks


class Column(NamedTuple):
    """A metric of some rows."""

    label: str
    metric: str
    rows: list[Row]


def columns_of(rows: list[Row], metrics: list[str]) -> list[Column]:
    """The same rows in several metrics."""
    return [Column(METRICS[name].label, name, rows) for name in metrics]


def metric_table(columns: list[Column], caption: str = "", task: Task | None = None) -> Table:
    """Columns with the best figure and the second marked; with a task, the paper's figures and how many texts."""
    ranks = [rank(column.rows, column.metric) for column in columns]
    lines = []
    for number, first in enumerate(columns[0].rows):
        line = [Entry(first.label, note=f"{first.texts:,} texts" if task else "")]
        for column, marks in zip(columns, ranks, strict=True):
            row = column.rows[number]
            note = paper_figure(task, row.cell, column.metric) if task else ""
            line.append(Entry(shown(row.estimates[column.metric], column.metric), marks[number], note))
        lines.append(line)
    return Table(["sampler", *(column.label for column in columns)], lines, caption)


def paper_figure(task: Task, cell: Cell, metric: str) -> str:
    """What the paper has for the same sampler, where it has something."""
    for row in task.paper if as_in_paper(cell) else []:
        if (row.sampler, row.prefix) == (cell.sampler, cell.prefix) and metric in row.values:
            return " ± ".join(f"{value:.{METRICS[metric].digits}f}" for value in row.values[metric])
    return ""


def intervals(task: Task, results: list[Results]) -> list[Block]:
    """95 % bootstrap intervals of the same."""
    rows = usual_rows(task, results, task.columns)
    lines = [[Entry(row.label), *(Entry(interval(row.estimates[name], name)) for name in task.columns)] for row in rows]
    caption = "95 % bootstrap intervals: 1,000 draws of whole prompts with replacement."
    return [Table(["sampler", *(METRICS[name].label for name in task.columns)], lines, caption)]


def interval(found: Estimate | None, metric: str) -> str:
    """From where to where."""
    digits = METRICS[metric].digits
    return NOTHING if found is None else f"{found.low:.{digits}f} to {found.high:.{digits}f}"


def paired_differences(task: Task, results: list[Results]) -> list[Block]:
    """Control and perplexity of every sampler against the first one's, where both were asked the same."""
    metrics = [METRICS[name] for name in (task.control, "perplexity")]
    rows = usual_rows(task, results, [metric.name for metric in metrics])
    if len(rows) < 2:
        return []
    first, lines = rows[0], []
    for row in rows[1:]:
        found = [metric.compare(row.values[metric.name], first.values[metric.name]) for metric in metrics]
        prompts = max((one.prompts for one in found if one), default=0)
        entries = [
            difference_entry(one, metric.digits, metric.skewed) for one, metric in zip(found, metrics, strict=True)
        ]
        lines.append([Entry(row.label, note=f"{prompts} prompts"), *entries])
    caption = (
        f"Paired differences to {first.label}: same prompt, wish and length. Perplexities as a ratio of geometric "
        "means. Smaller: 95 % bootstrap intervals over prompts."
    )
    columns = [f"{metric.label}, {'ratio' if metric.skewed else 'difference'}" for metric in metrics]
    return [Table(["sampler", *columns], lines, caption)]


def split_tables(task: Task, results: list[Results]) -> list[Block]:
    """Control and perplexity for each wish and each length alone, where there are several."""
    blocks: list[Block] = []
    for field, caption in (("wish", "For each wish alone."), ("length", "For each length alone.")):
        values = list(dict.fromkeys(record[field] for one in results for record in one.records if _of(record, task)))
        columns = [
            Column(f"{METRICS[metric].label} {value}", metric, usual_rows(task, results, [metric], **{field: value}))
            for metric in (task.control, "perplexity")
            for value in values
        ]
        if len(values) > 1:
            blocks.append(metric_table(columns, caption))
    return blocks


def _of(record: Record, task: Task) -> bool:
    return bool(record["task"] == task.name)


def read_otherwise(task: Task, results: list[Results]) -> list[Block]:
    """The judged figures by what the judges were shown, if they were shown both."""
    if not any(one.run.settings.both for one in results):
        return []
    judged = [name for name in task.columns if METRICS[name].judges]
    shown_as: list[tuple[Reads, str]] = [
        ("text", "Judges read prompt and continuation."),
        ("continuation", "Judges read the continuation alone; its perplexity is given the prompt."),
    ]
    return [
        metric_table(columns_of(usual_rows(task, results, judged, reads), judged), said) for reads, said in shown_as
    ]


def front(task: Task, results: list[Results]) -> list[Block]:
    """Control against perplexity, through all strengths."""
    series: dict[tuple[str, str], list[plots.Point]] = defaultdict(list)
    for one in results:
        for cell in sorted(one.cells(task.name), key=lambda cell: cell.strength):
            row = one.row(cell, [task.control, "perplexity"])
            fluency, control = row.estimates["perplexity"], row.estimates[task.control]
            if not cell.knobs and fluency and control:
                series[row.label, cell.sampler].append(plots.Point(fluency, control, f"x{cell.strength:g}"))
    if not series or not plots.can_draw():
        return []
    several = any(len(points) > 1 for points in series.values())
    metric = METRICS[task.control]
    what = metric.what[:1].upper() + metric.what[1:]
    caption = f"{what}, against perplexity; upwards and to the left is better. Thin lines: 95 % intervals."
    if several:
        caption += " The numbers are factors on each sampler's strength."
    svg = plots.front(dict(series), metric.label.rstrip(" ↑↓").lower(), metric.higher)
    return [Figure(f"{task.name}-front", svg, caption)]


def examples(task: Task, results: Results) -> list[Block]:
    """The first text of every sampler for a few prompts."""
    blocks: list[Block] = [Heading("Example texts", 3)]
    if task.warning:
        blocks.append(Paragraph(task.warning))
    cells = results.usual(task.name)
    first: dict[str, dict[str, Record]] = defaultdict(dict)  # a prompt with its wish → a sampler → its first text
    for cell in cells:
        for record in results.texts(cell):
            first[record["item"]].setdefault(cell.label, record)
    for item in spread(list(first), EXAMPLES):
        records = first[item]
        one = next(iter(records.values()))
        wished = one["wish"] if one["topic"] is None else one["topic"]
        texts = [(label, record["text"]) for label, record in records.items()]
        blocks.append(Example(f"{wished}, {one['length']} tokens", one["prompt"], texts))
    return blocks


# Who judged, what is missing, what it all means, how long it took


def about_judges(results: list[Results]) -> list[Block]:
    """Every judge with its revision and what it was measured to be worth."""
    abouts = {name: about for one in results for name, about in one.run.abouts.items()}
    if not abouts:
        return []
    lines = []
    for name, about in abouts.items():
        accuracy = _listed(about.get("accuracy")) or ("not measured" if name not in ("perplexity", "bertscore") else "")
        mcc = _listed(about.get("mcc"))
        lines.append([Entry(name), Entry(about["model"]), Entry(about["revision"]), Entry(accuracy), Entry(mcc)])
    columns = ["judge", "model", "revision", "accuracy on held-out rows", "Matthews correlation"]
    said = Paragraph("No judge guides any sampler: other weights, other body, and other rows where there were any.")
    return [Heading("Judges"), said, Table(columns, lines, words=True)]


def _listed(found: dict[str, float] | None) -> str:
    return "; ".join(f"{value:.3f} {name}" for name, value in (found or {}).items())


def about_missing(results: list[Results]) -> list[Block]:
    """What is not in the tables and why."""
    said = [f"judge {name}: {why}" for one in results for name, why in one.run.missing.items()]
    said += [f"{cell}: {why}" for one in results for cell, why in one.run.skipped.items()]
    if not plots.can_draw():
        said.append("plots: pip install 'slalom[eval]' brings matplotlib")
    return [Heading("Not measured"), Bullets(said)] if said else []


def definitions(results: list[Results]) -> list[Block]:
    """Every metric of the tables in a line."""
    columns = [name for one in results for task in one.task_names() for name in one.run.tasks[task].columns]
    names = list(dict.fromkeys([*columns, *DIVERSITY])) if columns else []
    said = [f"{METRICS[name].label.rstrip(' ↑↓')}: {METRICS[name].what}." for name in names]
    return [Heading("Metrics"), Bullets(said)] if said else []


def about_speed(results: list[Results]) -> list[Block]:
    """What each sampler took: all that differs from run to run stands here, at the end."""
    lines = []
    for one in results:
        for task in one.task_names():
            for cell in one.usual(task):
                records = one.texts(cell)
                seconds = sum({record["chunk"]: record["seconds"] for record in records}.values())
                label = one.row(cell, []).label
                lines.append(
                    [
                        Entry(f"{task}: {label}"),
                        Entry(f"{seconds / len(records):.2f}"),
                        Entry(f"{sum(record['steps'] for record in records) / len(records):.1f}"),
                    ]
                )
    if not lines:
        return []
    return [Heading("Speed"), Table(["sampler", "seconds a text", "drafts a text"], lines)]
