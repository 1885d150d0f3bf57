"""What `slalom bench` measured to a picture: steps, satisfied texts, growth, parts of a step, memory and start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from slalom.evaluation.bench_profile import DECODED
from slalom.evaluation.satisfied import BOTH

if TYPE_CHECKING:
    from matplotlib.axes import Axes

START = ("python", "imports", "LM", "guide", "first draft")


def draw_bench(measured: dict[str, Any], path: Path) -> None:
    """One picture with six panels; a panel without figures stays away."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(16, 9))
    batch = max(measured["profile"]["torch"], key=int)
    draw_steps(panels[0, 0], measured)
    draw_satisfied(panels[0, 1], measured["satisfied_over_generate"])
    draw_scaling(panels[0, 2], measured.get("scaling", {}))
    draw_profile(panels[1, 0], {engine: rows[batch] for engine, rows in measured["profile"].items()}, batch)
    draw_groups(panels[1, 1], measured["memory_over_generate"], "memory above loading, over generate's")
    draw_start(panels[1, 2], measured["start"])
    for axes in panels.flat:
        axes.set_visible(axes.has_data())
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def draw_steps(axes: Axes, measured: dict[str, Any]) -> None:
    """A group of bars for each batch, a bar for each sampler and engine."""
    kinds = {"climb": "step_over_generate", "dab": "dab_step_over_generate"}
    groups: dict[str, dict[str, float]] = {}
    for sampler, key in kinds.items():
        for engine, ratios in measured[key].items():
            for batch, ratio in ratios.items():
                groups.setdefault(f"batch {batch}", {})[f"{sampler}, {engine}"] = ratio
    draw_groups(axes, groups, "a step over generate")


def draw_satisfied(axes: Axes, satisfied: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]) -> None:
    """A group of bars for each way, a bar for each engine and batch: the median over both wishes."""
    groups: dict[str, dict[str, float]] = {}
    for engine, by_batch in satisfied.items():
        for batch, ways in by_batch.items():
            for way, wishes in ways.items():
                figures = wishes.get(BOTH) or next(iter(wishes.values()))
                groups.setdefault(way.replace(", ", ",\n"), {})[f"{engine}, batch {batch}"] = figures["median"]
    draw_groups(axes, groups, "a text of 20 tokens over generate, median")
    axes.set_yscale("log")


def draw_groups(axes: Axes, groups: dict[str, dict[str, float]], title: str) -> None:
    """Bars side by side, a group for each name, a colour for each contender, a line at 1."""
    contenders = list(dict.fromkeys(name for ratios in groups.values() for name in ratios))
    width = 0.8 / max(len(contenders), 1)
    for number, contender in enumerate(contenders):
        held = [(group, ratios[contender]) for group, ratios in enumerate(groups.values()) if contender in ratios]
        places = [group - 0.4 + width * (number + 0.5) for group, _ in held]
        bars = axes.bar(places, [ratio for _, ratio in held], width, label=contender)
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    if contenders:
        axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
        axes.axhline(1, color="grey", lw=0.8)
        axes.set_title(title)
        axes.legend(fontsize=8)


def draw_scaling(axes: Axes, scaling: dict[str, dict[str, dict[str, float]]]) -> None:
    """Milliseconds over length and over batch, dashed for `generate`, with a dotted line for linear growth."""
    for kind, (name, rows) in enumerate(scaling.items()):
        for engine, times in rows.items():
            sizes, took = [int(size) for size in times], list(times.values())
            style = "o--" if engine == "generate" else "o-"
            axes.loglog(sizes, took, style, color=f"C{list(rows).index(engine) + 3 * kind}", label=f"{engine}: {name}")
            axes.loglog(sizes, [took[0] * size / sizes[0] for size in sizes], ":", color="lightgrey")
    if scaling:
        axes.set_title("milliseconds of a climb step; dotted: linear")
        axes.legend(fontsize=7)


def draw_profile(axes: Axes, profile: dict[str, dict[str, float]], batch: str) -> None:
    """A stacked bar for each engine; a part has the same colour on every engine."""
    parts = sorted({part for step in profile.values() for part in step} - {"step", DECODED})
    draw_stacks(axes, {engine: {part: step.get(part, 0.0) for part in parts} for engine, step in profile.items()})
    axes.set_title(f"milliseconds of a climb step by part, batch {batch}")


def draw_start(axes: Axes, start: dict[str, float]) -> None:
    """One stacked bar, from the start of the process to the first draft."""
    draw_stacks(axes, {"slalom generate": {part: start[part] for part in START}})
    axes.set_xlim(-0.5, 1.5)  # room for the legend
    axes.set_title(f"seconds to the first draft: {start['total']:.1f} (median of {start['runs']})")


def draw_stacks(axes: Axes, stacks: dict[str, dict[str, float]]) -> None:
    """A stacked bar for each name, a colour for each part."""
    heights = [0.0] * len(stacks)
    for part in next(iter(stacks.values())):
        values = [parts[part] for parts in stacks.values()]
        bars = axes.bar(range(len(stacks)), values, 0.5, bottom=heights, label=part)
        axes.bar_label(bars, fmt="%.4g", label_type="center", fontsize=7)
        heights = [height + value for height, value in zip(heights, values, strict=True)]
    axes.set_xticks(range(len(stacks)), list(stacks))
    axes.legend(fontsize=8)
