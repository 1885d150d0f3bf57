"""Runs to a report: tables, intervals, plots, the paper's figures beside ours, example texts, the judges."""

from __future__ import annotations

import shlex
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from slalom.evaluation import plots, store
from slalom.evaluation.cells import UNSTEERED, Cell
from slalom.evaluation.document import (
    Block,
    Bullets,
    Command,
    Entry,
    ExampleTexts,
    Figure,
    Heading,
    Paragraph,
    Table,
    html,
    markdown,
)
from slalom.evaluation.estimates import FEWEST_PROMPTS, Estimate, Values, by_prompt, estimate, median_interval
from slalom.evaluation.metrics import METRICS
from slalom.evaluation.run_folder import Run
from slalom.evaluation.store import Record
from slalom.evaluation.study_report import ablation, about_study, capitalised
from slalom.evaluation.summary import (
    MISSING,
    Results,
    TableRow,
    compare,
    count_note,
    difference_entry,
    differing_judges,
    format_estimate,
    is_own_text,
    matches_paper,
    rank,
)
from slalom.evaluation.tasks import Reads, Task, evenly_spaced

COST_METRICS = ["seconds", "passes"]  # in every task's tables: control is compared at a price
DIVERSITY_METRICS = ["distinct-texts", "distinct-1", "distinct-2", "distinct-3", "self-bleu"]
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
    names = [
        name
        for result in results
        for name in ([result.run.settings.study] if result.run.settings.study else result.task_names())
    ]
    return f"Slalom: {', '.join(dict.fromkeys(names))}"


def blocks_of(results: list[Results]) -> list[Block]:
    """The whole report, of one run or of several side by side."""
    blocks: list[Block] = [Heading(title_of(results), 1)]
    for result in results:
        blocks += about_run(result)
    blocks.append(
        Paragraph(
            "Figures are means ± standard errors, n of how many values; a few texts can make a mean of perplexities or "
            "of costs, so the median stands beside it. The best figure of a column is bold and the second underlined, "
            "but only where the 95 % interval of the paired difference to every sampler behind it leaves 0 out, over "
            f"{FEWEST_PROMPTS} prompts or more; where a task has a single prompt, its records count as prompts. "
            "Seconds and LM passes are shared by texts that were written together, so they have no intervals and are "
            f"not ranked. {MISSING} is what could not be measured."
        )
    )
    if differing := differing_judges(results):
        blocks.append(
            Paragraph(
                f"Judges that are not the same in all folders: {', '.join(differing)}. What they judge is not ranked, "
                "and has paired differences only where both were judged by the same model."
            )
        )
    for name in dict.fromkeys(task for result in results for task in result.task_names()):
        blocks += about_task(name, [result for result in results if name in result.task_names()])
    for result in results:
        blocks += about_study(result)
    blocks += about_judges(results)
    blocks += about_missing(results)
    blocks += definitions(results)
    return blocks + about_speed(results)


# One run


def about_run(results: Results) -> list[Block]:
    """What was run, and how to run it again."""
    settings = results.run.settings
    engines = ", ".join(
        dict.fromkeys(record["engine"] for record in [*results.records, *store.read(results.run.units)])
    )
    if "openvino" in engines:
        engines += " (torch for samplers that cannot use it)"
    named = f"{results.name}: " if results.name else ""
    setup = f"{named}{settings.model} on {engines or settings.engine}, preset {settings.preset}, seed {settings.seed}"
    texts = f", {len(results.records):,} texts" if results.records else ""
    own = " The judge of perplexity is the steered LM itself." if judges_itself(results.run) else ""
    return [
        Paragraph(f"{setup}{texts} ({versions_of(results)}).{own}"),
        Command("\n".join(commands_of(results.run))),
    ]


def versions_of(results: Results) -> str:
    """What the texts were written with; of what has no versions of its own, what the run was last begun with."""
    versions: dict[str, dict[str, None]] = defaultdict(dict)  # a package → its versions in order
    for one in [record["versions"] for record in results.records] or [results.run.versions]:
        for name, version in one.items():
            versions[name][version] = None
    return ", ".join(f"{name} {' and '.join(of_package)}" for name, of_package in versions.items())


def judges_itself(run: Run) -> bool:
    """Whether the steered LM is also the judge of perplexity."""
    return run.judge_info.get("perplexity", {}).get("model") == run.settings.model


class Setup(NamedTuple):
    """What a command sets for all its samplers."""

    prefix: bool
    knobs: tuple[tuple[str, Any], ...]
    strengths: tuple[float, ...]


def commands_of(run: Run) -> list[str]:
    """The command lines that make this run, one after the other: each makes all its samplers on all its tasks."""
    cells = run.settings.cells
    if run.settings.study:
        samplers = dict.fromkeys(cell.typed_sampler for cell in cells)
        return [command(run, [run.settings.study], list(samplers), Setup(False, (), (1.0,)))]
    samplers_of: dict[tuple[str, Setup], dict[str, None]] = defaultdict(dict)  # a task, set up one way → its samplers
    for cell in cells:
        samplers_of[cell.task, setup_of(cell, cells)][cell.typed_sampler] = None
    tasks_of: dict[tuple[Setup, tuple[str, ...]], list[str]] = defaultdict(list)
    for (task, setup), samplers in samplers_of.items():
        tasks_of[setup, tuple(samplers)].append(run.tasks[task].source or task)
    return [command(run, tasks, list(samplers), setup) for (setup, samplers), tasks in tasks_of.items()]


def setup_of(cell: Cell, cells: tuple[Cell, ...]) -> Setup:
    """How a cell is set up. The unsteered LM has one strength and no knobs, whatever is typed: it goes with others."""
    if cell.sampler == UNSTEERED:
        others = (one for one in cells if one.sampler != UNSTEERED)
        cell = next((one for one in others if (one.task, one.prefix) == (cell.task, cell.prefix)), cell)
    strengths = sorted(one.strength for one in cells if one._replace(strength=cell.strength) == cell)
    return Setup(cell.prefix, cell.knobs, tuple(strengths))


def command(run: Run, tasks: list[str], samplers: list[str], setup: Setup) -> str:
    """One command line."""
    settings = run.settings
    words = ["slalom", "eval", *tasks, "--samplers", ",".join(samplers)]
    words += ["--preset", settings.preset, "--model", settings.model, "--engine", settings.engine]
    words += ["--seed", str(settings.seed), "--judges", settings.judges]
    if setup.strengths != (1.0,):
        words += ["--strengths", ",".join(f"{strength:g}" for strength in setup.strengths)]
    for name, value in setup.knobs:
        words += ["--knob", f"{name}={value}"]
    words += ["--prefix"] if setup.prefix else []
    words += ["--both"] if settings.both else []
    return shlex.join([*words, "--out", run.folder.resolve().name])


# One task


def about_task(name: str, results: list[Results]) -> list[Block]:
    """A task's tables, plot and examples."""
    columns = dict.fromkeys(column for result in results for column in result.run.tasks[name].columns)
    task = results[0].run.tasks[name].model_copy(update={"columns": list(columns)})
    blocks: list[Block] = [Heading(name), Paragraph(task.what)]
    front = tradeoff(task, results)
    blocks += about_strengths(task, results, bool(front))
    blocks += main_table(task, results)
    blocks += intervals(task, results)
    blocks += paired_differences(task, results)
    blocks += front
    blocks += against_time(task, results)
    blocks += split_tables(task, results)
    blocks += tables_by_what_was_read(task, results)
    diverse = main_rows(task, results, DIVERSITY_METRICS)
    if any(estimated for row in diverse for estimated in row.estimates.values()):
        caption = "How different the continuations of one prompt are."
        blocks.append(metric_table(columns_of(diverse, DIVERSITY_METRICS), caption))
    for result in results:
        blocks += ablation(task, result)
    shown = [result for result in results if result.main_cells(name)]
    blocks += [block for result in shown[:1] for block in examples(task, result)]
    return [block for block in blocks if not isinstance(block, Table) or block.rows]


def about_strengths(task: Task, results: list[Results], plotted: bool) -> list[Block]:
    """Which samplers have no texts at strength 1, and where what they have is shown."""
    elsewhere: dict[str, list[float]] = defaultdict(list)
    for result in results:
        usual = result.main_cells(task.name)
        for cell in result.cells(task.name):
            if cell._replace(strength=1.0) not in usual and not result.ablated(cell):
                elsewhere[result.named(cell.label)].append(cell.strength)
    if not elsewhere:
        return []
    listed = "; ".join(
        f"{label} ({'strength' if len(strengths) == 1 else 'strengths'} {', '.join(f'{one:g}' for one in strengths)})"
        for label, strengths in elsewhere.items()
    )
    where = "in the plot of control against perplexity, and all in the output" if plotted else "in the output"
    return [
        Paragraph(
            f"Tables and examples are of texts at strength 1. There are none of {listed}: their figures are {where} of "
            "slalom report --json."
        )
    ]


def main_rows(
    task: Task, results: list[Results], metrics: list[str], reads: Reads | None = None, **only: object
) -> list[TableRow]:
    """A row for every sampler of every run, of all texts or only of those with these fields."""
    return [
        result.row(cell, metrics, reads, lambda record: all(record[name] == value for name, value in only.items()))
        for result in results
        for cell in result.main_cells(task.name)
    ]


def main_table(task: Task, results: list[Results]) -> list[Block]:
    """Every column of the task, with the paper's own figures below ours."""
    metrics = [*task.columns, *COST_METRICS]
    rows = main_rows(task, results, metrics)
    noted = any(paper_figure(task, row.cell, metric) for row in rows for metric in task.columns)
    caption = "After n, the paper's own figures. " + (task.paper_note or "") if noted else ""
    blocks: list[Block] = [metric_table(columns_of(rows, metrics), caption, task)]
    if any(is_own_text(row.cell) for row in rows):
        own = f"{UNSTEERED} is the model's own text, neither told nor steered, for comparison; it is not ranked."
        blocks.append(Paragraph(own))
    return blocks


class Column(NamedTuple):
    """A metric of some rows."""

    label: str
    metric: str
    rows: list[TableRow]


def columns_of(rows: list[TableRow], metrics: list[str]) -> list[Column]:
    """The same rows in several metrics."""
    return [Column(METRICS[name].label, name, rows) for name in metrics]


def metric_table(columns: list[Column], caption: str = "", task: Task | None = None) -> Table:
    """Columns with the best figure and the second marked, n in every entry; with a task, the paper's figures."""
    ranks = [rank(column.rows, column.metric) for column in columns]
    lines = []
    for number, first in enumerate(columns[0].rows):
        line = [Entry(first.label, note=f"{first.texts:,} texts" if task else "")]
        for column, marks in zip(columns, ranks, strict=True):
            row = column.rows[number]
            estimated = row.estimates[column.metric]
            published = paper_figure(task, row.cell, column.metric) if task else ""
            notes = [count_note(estimated), f"paper {published}" if published else ""]
            note = "; ".join(filter(None, notes))
            line.append(Entry(format_estimate(estimated, column.metric), marks[number], note))
        lines.append(line)
    return Table(["sampler", *(column.label for column in columns)], lines, caption)


def paper_figure(task: Task, cell: Cell, metric: str) -> str:
    """The paper's figure for the same sampler, if it has one."""
    for row in task.paper if matches_paper(cell) else []:
        if (row.sampler, row.prefix) == (cell.sampler, cell.prefix) and metric in row.values:
            return " ± ".join(f"{value:.{METRICS[metric].digits}f}" for value in row.values[metric])
    return ""


def intervals(task: Task, results: list[Results]) -> list[Block]:
    """95 % bootstrap intervals of the main table."""
    rows = main_rows(task, results, task.columns)
    lines = [[Entry(row.label), *(interval_entry(row.estimates[name], name) for name in task.columns)] for row in rows]
    caption = (
        "95 % bootstrap intervals of the means: 1,000 draws of whole prompts with replacement. The texts of all "
        "prompts are drawn with the same random numbers (a text's seed is the run's plus the number of its sample, "
        "whatever the prompt), so intervals are over other prompts, not over other seeds."
    )
    return [Table(["sampler", *(METRICS[name].label for name in task.columns)], lines, caption)]


def interval_entry(estimated: Estimate | None, metric: str) -> Entry:
    """The ends of an interval, and of how many values it is."""
    digits = METRICS[metric].digits
    text = MISSING if estimated is None else f"{estimated.low:.{digits}f} to {estimated.high:.{digits}f}"
    return Entry(text, note=count_note(estimated))


def paired_differences(task: Task, results: list[Results]) -> list[Block]:
    """Control, perplexity and cost of every sampler against the first one's, on common cases."""
    metrics = [METRICS[name] for name in (task.control, "perplexity", *COST_METRICS)]
    rows = main_rows(task, results, [metric.name for metric in metrics])
    if len(rows) < 2:
        return []
    first, lines = rows[0], []
    for row in rows[1:]:
        differences = [compare(row, first, metric.name) for metric in metrics]
        prompts = max((one.prompts for one in differences if one), default=0)
        entries = [
            difference_entry(one, metric.digits, metric.skewed, metric.shared)
            for one, metric in zip(differences, metrics, strict=True)
        ]
        lines.append([Entry(row.label, note=f"{prompts} prompts"), *entries])
    caption = (
        f"Paired differences to {first.label}: same prompt, wish and length. Perplexities and costs as a ratio of "
        "geometric means. Smaller: 95 % bootstrap intervals over prompts."
    )
    columns = [f"{metric.label}, {'ratio' if metric.skewed else 'difference'}" for metric in metrics]
    return [Table(["sampler", *columns], lines, caption)]


def split_tables(task: Task, results: list[Results]) -> list[Block]:
    """Control and perplexity for each wish and each length alone, where there are several."""
    blocks: list[Block] = []
    for field, caption in (("wish", "For each wish alone."), ("length", "For each length alone.")):
        values = list(
            dict.fromkeys(
                record[field] for result in results for record in result.records if record["task"] == task.name
            )
        )
        columns = [
            Column(f"{METRICS[metric].label} {value}", metric, main_rows(task, results, [metric], **{field: value}))
            for metric in (task.control, "perplexity")
            for value in values
        ]
        if len(values) > 1:
            blocks.append(metric_table(columns, caption))
    return blocks


def tables_by_what_was_read(task: Task, results: list[Results]) -> list[Block]:
    """The judged metrics by what the judges read, if they read both."""
    if not any(result.run.settings.both for result in results):
        return []
    judged = [name for name in task.columns if METRICS[name].judges]
    captions: list[tuple[Reads, str]] = [
        ("text", "Judges read prompt and continuation."),
        ("continuation", "Judges read the continuation alone; its perplexity is given the prompt."),
    ]
    return [
        metric_table(columns_of(main_rows(task, results, judged, reads), judged), caption)
        for reads, caption in captions
    ]


def tradeoff(task: Task, results: list[Results]) -> list[Block]:
    """Control against perplexity, through all strengths."""
    series: dict[tuple[str, str], list[plots.Point]] = defaultdict(list)
    for result in results:
        for cell in sorted(result.cells(task.name), key=lambda cell: cell.strength):
            row = result.row(cell, [task.control, "perplexity"])
            fluency, control = row.estimates["perplexity"], row.estimates[task.control]
            if not result.ablated(cell) and fluency and control:
                series[row.label, cell.sampler].append(plots.Point(fluency, control, f"x{cell.strength:g}"))
    if not series or not plots.can_draw():
        return []
    several = any(len(points) > 1 for points in series.values())
    metric = METRICS[task.control]
    what = capitalised(metric.definition)
    caption = f"{what}, against perplexity; upwards and to the left is better. Thin lines: 95 % intervals."
    if several:
        caption += " The numbers are factors on each sampler's strength."
    svg = plots.tradeoff_plot(dict(series), metric.label.rstrip(" ↑↓").lower(), metric.higher)
    return [Figure(f"{task.name}-front", svg, caption)]


def against_time(task: Task, results: list[Results]) -> list[Block]:
    """Control, and fluency, against seconds a text: every sampler at its usual strength."""
    rows = main_rows(task, results, [task.control, "perplexity", "seconds"])
    points = [
        plots.TimedPoint(row.label, row.cell.sampler, seconds, control, fluency)
        for row in rows
        if (seconds := row.estimates["seconds"])
        and (control := row.estimates[task.control])
        and (fluency := median_estimate(row.values["perplexity"]))
    ]
    if not points or not plots.can_draw():
        return []
    metric = METRICS[task.control]
    svg = plots.time_plot(points, metric.label.rstrip(" ↑↓").lower(), metric.higher)
    caption = (
        "Control, and the median perplexity, against the median of seconds a text; to the left is cheaper. "
        "Thin lines: 95 % intervals."
    )
    return [Figure(f"{task.name}-time", svg, caption)]


def median_estimate(values: Values) -> Estimate | None:
    """An estimate whose interval is the median's."""
    clusters = by_prompt(values)
    estimated, interval = estimate(clusters), median_interval(clusters)
    return estimated and interval and estimated._replace(low=interval.low, high=interval.high)


def examples(task: Task, results: Results) -> list[Block]:
    """The first text of every sampler for a few prompts."""
    blocks: list[Block] = [Heading(results.named("Example texts"), 3)]
    if task.warning:
        blocks.append(Paragraph(task.warning))
    cells = results.main_cells(task.name)
    first: dict[str, dict[str, Record]] = defaultdict(dict)  # a prompt with its wish → a sampler → its first text
    for cell in cells:
        for record in results.texts(cell):
            first[record["item"]].setdefault(cell.label, record)
    for item in evenly_spaced(list(first), EXAMPLES):
        records = first[item]
        example = next(iter(records.values()))
        wished = example["wish"] if example["topic"] is None else example["topic"]
        texts = [(label, record["text"]) for label, record in records.items()]
        blocks.append(ExampleTexts(f"{wished}, {example['length']} tokens", example["prompt"], texts))
    return blocks


# The judges, what is missing, the metrics' definitions, the time taken


def about_judges(results: list[Results]) -> list[Block]:
    """Every judge with its revision and its measured accuracy; folder by folder where it was not the same in all."""
    differing = differing_judges(results)
    judges = {
        result.named(name) if name in differing else name: (name, info)
        for result in results
        for name, info in result.run.judge_info.items()
    }
    if not judges:
        return []
    lines = []
    for label, (name, info) in judges.items():
        accuracy = _listed(info.get("accuracy")) or ("not measured" if name not in ("perplexity", "bertscore") else "")
        mcc = _listed(info.get("mcc"))
        lines.append([Entry(label), Entry(info["model"]), Entry(info["revision"]), Entry(accuracy), Entry(mcc)])
    columns = ["judge", "model", "revision", "accuracy on held-out rows", "Matthews correlation"]
    note = "No judge guides any sampler: other weights, other body, and other rows where there were any."
    if own := [result for result in results if judges_itself(result.run)]:
        of = f" of {', '.join(result.name for result in own)}" if own[0].name else ""
        note += (
            f" The judge of perplexity{of} is the steered LM itself, told nothing: its figures are not independent, "
            "and favour texts that this LM finds likely."
        )
    return [Heading("Judges"), Paragraph(note), Table(columns, lines, words=True)]


def _listed(by_set: dict[str, float] | None) -> str:
    return "; ".join(f"{value:.3f} {name}" for name, value in (by_set or {}).items())


def about_missing(results: list[Results]) -> list[Block]:
    """What is not in the tables and why."""
    reasons = [f"judge {name}: {why}" for result in results for name, why in result.run.missing_judges.items()]
    reasons += [f"{cell}: {why}" for result in results for cell, why in result.run.skipped.items()]
    if not plots.can_draw():
        reasons.append("plots: pip install 'slalom[eval]' brings matplotlib")
    return [Heading("Not measured"), Bullets(reasons)] if reasons else []


def definitions(results: list[Results]) -> list[Block]:
    """The definition of every metric in the tables."""
    columns = [name for result in results for task in result.task_names() for name in result.run.tasks[task].columns]
    names = list(dict.fromkeys([*columns, *COST_METRICS, *DIVERSITY_METRICS])) if columns else []
    lines = [f"{METRICS[name].label.rstrip(' ↑↓')}: {METRICS[name].definition}." for name in names]
    return [Heading("Metrics"), Bullets(lines)] if lines else []


def about_speed(results: list[Results]) -> list[Block]:
    """The time each sampler took, over all its texts, and its drafts."""
    lines = []
    for result in results:
        for task in result.task_names():
            for cell in result.main_cells(task):
                records = result.texts(cell)
                seconds = sum({record["chunk"]: record["seconds"] for record in records}.values())
                label = result.named(cell.label)
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
