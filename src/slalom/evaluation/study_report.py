"""The measurements of a study to its part of a report: the paper's Figures 3 and 4, Tables 1 and 3."""

from __future__ import annotations

import re
from collections import defaultdict

from slalom.evaluation import plots, store
from slalom.evaluation.cells import Cell
from slalom.evaluation.document import Block, Entry, Figure, Heading, Paragraph, Table
from slalom.evaluation.estimates import Estimate, estimate
from slalom.evaluation.metrics import METRICS
from slalom.evaluation.run_folder import Run
from slalom.evaluation.store import Record
from slalom.evaluation.studies import STUDIES, knob_value
from slalom.evaluation.summary import MISSING, Results, TableRow, count_note, format_estimate, matches_paper
from slalom.evaluation.tasks import Task

KNOB_LABELS = {"weight": "bias weight w", "tau": "proposal temperature τ", "top_k": "top-k"}

# The paper's Tables 1 and 3, on its authors' machine, with GPT-2 large.
PAPER_TOKENS_PER_SECOND = {"bolt": "9.495 ± 0.095", "dab": "23.213 ± 0.304"}
PAPER_BACKWARD = {
    "bolt": {"AddmmBackward0": (3098, 1.8434), "ViewBackward0": (10761, 0.5635), "BmmBackward0": (1536, 0.2702)},
    "dab": {"AddmmBackward0": (74, 0.02123), "ViewBackward0": (205, 0.1326), "BmmBackward0": (24, 0.0047)},
}


def about_study(results: Results) -> list[Block]:
    """The figures of a study that measures the sampling itself."""
    measured = store.read(results.run.units)
    if not measured:
        return []
    study = str(results.run.settings.study)
    blocks: list[Block] = [Heading(results.named(study)), Paragraph(f"{capitalised(STUDIES[study].description)}.")]
    return blocks + (exploration(results, measured) if study == "exploration" else efficiency(results.run, measured))


def figure_name(name: str, results: Results) -> str:
    """A figure's name; if several runs are compared, of this one alone."""
    return "-".join([name, *re.findall(r"[\w.]+", results.name)])


def by_cell(run: Run, measured: list[Record]) -> list[tuple[Cell, list[Record]]]:
    """Each cell with its units; cells without any are left out."""
    grouped = [(cell, [unit for unit in measured if unit["cell"] == cell.id]) for cell in run.settings.cells]
    return [(cell, units) for cell, units in grouped if units]


def exploration(results: Results, measured: list[Record]) -> list[Block]:
    """Figure 3: hops, different tokens, perplexity."""
    groups = by_cell(results.run, measured)
    curves = {
        name: [
            plots.Curve(cell.label, cell.sampler, *_mean_curve([unit[name] for unit in units], first))
            for cell, units in groups
        ]
        for name, first in (("hops", 2), ("perplexity", 1))
    }
    lines = []
    for cell, units in groups:
        values = {
            "hops": [sum(unit["hops"]) / len(unit["hops"]) for unit in units if unit["hops"]],
            "unique": [unit["unique"] for unit in units],
            "perplexity": [unit["perplexity"][-1] for unit in units],
        }
        estimates = [estimate({str(i): [value] for i, value in enumerate(listed)}) for listed in values.values()]
        entries = [Entry(mean_and_error(one, 2), note=count_note(one)) for one in estimates]
        lines.append([Entry(cell.label), *entries])
    columns = ["sampler", "hops a step", "different tokens a position", "perplexity at the last step"]
    blocks: list[Block] = [Table(columns, lines, "Mean ± standard error over n prompts.")]
    if plots.can_draw():
        unique = [
            (cell.label, cell.sampler, sum(unit["unique"] for unit in units) / len(units)) for cell, units in groups
        ]
        shown_panels: list[plots.Panel | plots.Bars] = [
            plots.Panel("step", "hops (positions changed)", curves["hops"]),
            plots.Bars("different tokens a position", unique),
            plots.Panel("step", "perplexity under the steered LM", curves["perplexity"], log_y=True),
        ]
        caption = (
            "Left: positions whose token differs from the draft before. Middle: different tokens seen at a position. "
            "Right: perplexity of each step's drafts. Means over prompts and rows."
        )
        blocks.append(Figure(figure_name("exploration", results), plots.panels(shown_panels), caption))
    return blocks


def _mean_curve(series: list[list[float]], first: int) -> tuple[list[float], list[float]]:
    length = min(map(len, series))
    means = [sum(one[i] for one in series) / len(series) for i in range(length)]
    return [float(first + i) for i in range(length)], means


def mean_and_error(estimated: Estimate | None, digits: int) -> str:
    """A mean and its standard error in so many digits."""
    if estimated is None:
        return MISSING
    return f"{estimated.mean:.{digits}f}" + ("" if estimated.error is None else f" ± {estimated.error:.{digits}f}")


def capitalised(text: str) -> str:
    """The first letter in upper case, the others as they are."""
    return text[:1].upper() + text[1:]


def efficiency(run: Run, measured: list[Record]) -> list[Block]:
    """Tables 1 and 3: tokens per second, and the backward operations of one bias update."""
    groups = by_cell(run, measured)
    speed = []
    for cell, units in groups:
        speeds = [
            estimate({unit["prompt"]: [factor(unit) * unit["tokens_per_second"]] for unit in units})
            for factor in (lambda unit: 1, lambda unit: unit["rows"])
        ]
        paper = PAPER_TOKENS_PER_SECOND.get(cell.sampler) if matches_paper(cell) else None
        note = f"{count_note(speeds[0])}; paper {paper}" if paper else count_note(speeds[0])
        steps = f"{units[0]['steps']} steps, {units[0]['rows']} rows"
        entries = [
            Entry(mean_and_error(speeds[0], 2), note=note),
            Entry(mean_and_error(speeds[1], 1), note=count_note(speeds[1])),
        ]
        speed.append([Entry(cell.label, note=steps), *entries])
    lines = []
    for operation in costliest(groups):
        line = [Entry(operation)]
        for cell, units in groups:
            published = PAPER_BACKWARD.get(cell.sampler, {}).get(operation) if matches_paper(cell) else None
            calls = [unit["backward"].get(operation, {}).get("calls", 0) for unit in units]
            seconds = [unit["backward"].get(operation, {}).get("seconds", 0.0) for unit in units]
            line.append(Entry(f"{sum(calls) / len(units):.0f}", note=f"paper {published[0]}" if published else ""))
            line.append(Entry(f"{sum(seconds) / len(units):.4f}", note=f"paper {published[1]:g}" if published else ""))
        lines.append(line)
    columns = [column for cell, units in groups for column in (f"{cell.label}: calls (n {len(units)})", "seconds")]
    return [
        Table(
            ["sampler", "n·s/t", "of all rows"],
            speed,
            "Tokens per second: length * steps / time, and that times the rows decoded together. Every draft is "
            "credited with all its tokens, though climb decodes only those after a move. Mean ± standard error over n "
            "prompts; the paper's is of its authors' machine.",
        ),
        Table(
            ["operation", *columns],
            lines,
            "Backward operations of one step, by torch's profiler (which slows what it watches): the three that cost "
            "the costliest sampler most. Means over n prompts.",
        ),
    ]


def costliest(groups: list[tuple[Cell, list[Record]]]) -> list[str]:
    """The three backward operations that take the sampler with the longest backward pass most time."""
    totals: list[dict[str, float]] = []
    for _, units in groups:
        total: dict[str, float] = defaultdict(float)
        for unit in units:
            for operation, took in unit["backward"].items():
                total[operation] += took["seconds"] / len(units)
        totals.append(total)
    longest = max(totals, key=lambda total: sum(total.values()))
    return sorted(longest, key=lambda operation: -longest[operation])[:3]


def ablation(task: Task, results: Results) -> list[Block]:
    """Figure 4: control and perplexity over one knob at a time, the others unchanged."""
    changed = [cell for cell in results.cells(task.name) if results.ablated(cell)]
    if not changed:
        return []
    metrics = [task.control, "perplexity"]
    blocks: list[Block] = [Heading(results.named("One knob at a time"), 3)]
    panels: dict[str, list[plots.Panel | plots.Bars]] = {name: [] for name in metrics}
    for knob, label in KNOB_LABELS.items():
        cells = [cell for cell in changed if cell.knobs[0][0] == knob] + results.main_cells(task.name)
        rows = [(knob_value(cell, knob, results.records), results.row(cell, metrics)) for cell in cells]
        rows.sort(key=lambda pair: pair[0])
        lines = [
            [
                Entry(f"{value:g}"),
                *(Entry(format_estimate(own, name), note=count_note(own)) for name, own in row.estimates.items()),
            ]
            for value, row in rows
        ]
        blocks.append(Table([label, *(METRICS[name].label for name in metrics)], lines))
        for name in metrics:
            curve = knob_curve(rows, name)
            if curve.x:
                panels[name].append(plots.Panel(label, METRICS[name].label, [curve], log_x=True))
    if plots.can_draw():
        for name, shown_panels in panels.items():
            caption = f"{capitalised(METRICS[name].definition)}, over one knob at a time. Bands: 95 % intervals."
            if shown_panels:
                blocks.append(Figure(figure_name(f"ablation-{name}", results), plots.panels(shown_panels), caption))
    return blocks


def knob_curve(rows: list[tuple[float, TableRow]], metric: str) -> plots.Curve:
    """A metric over a knob, where it was measured."""
    known = [(value, estimated) for value, row in rows if (estimated := row.estimates[metric])]
    return plots.Curve(
        METRICS[metric].label,
        rows[0][1].cell.sampler,
        [value for value, _ in known],
        [estimated.mean for _, estimated in known],
        [estimated.low for _, estimated in known],
        [estimated.high for _, estimated in known],
    )
