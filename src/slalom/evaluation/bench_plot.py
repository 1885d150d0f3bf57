"""What `slalom bench` measured to a picture: ratios, scaling and profile side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_bench(measured: dict[str, Any], path: Path) -> None:
    """One picture with three panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(13, 4))
    draw_ratios(left, measured["step_over_generate"])
    draw_scaling(middle, measured.get("scaling", {}))
    draw_profile(right, measured["profile"])
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def draw_ratios(axes: Axes, ratios_by_engine: dict[str, dict[str, float]]) -> None:
    """A group of bars for each batch size, a bar for each engine."""
    width = 0.8 / len(ratios_by_engine)
    for number, (engine, ratios) in enumerate(ratios_by_engine.items()):
        positions = [group - 0.4 + width * (number + 0.5) for group in range(len(ratios))]
        bars = axes.bar(positions, list(ratios.values()), width, label=engine)
        axes.bar_label(bars, fmt="%.2f")
        axes.set_xticks(range(len(ratios)), [f"batch {batch}" for batch in ratios])
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_title("a DAB step over stock generate (bfloat16)")
    axes.legend()


def draw_scaling(axes: Axes, scaling: dict[str, dict[str, float]]) -> None:
    """Milliseconds over length and over batch size, with a dotted line for linear growth."""
    for kind, times in scaling.items():
        sizes = [int(size) for size in times]
        axes.loglog(sizes, list(times.values()), "o-", label=kind)
        axes.loglog(sizes, [times[str(sizes[0])] * size / sizes[0] for size in sizes], ":", color="grey")
    axes.set_title("milliseconds of a step; dotted: linear")
    if scaling:
        axes.legend()


def draw_profile(axes: Axes, profile: dict[str, dict[str, dict[str, float]]]) -> None:
    """A stacked bar for each engine at the largest batch; a part has the same colour on every engine."""
    batch = list(profile["torch"])[-1]
    steps = [by_batch[batch] for by_batch in profile.values()]
    parts = sorted({part for step in steps for part in step} - {"step", "of which head"})
    heights = [0.0] * len(steps)
    for colour, part in enumerate(parts):
        bars = [number for number, step in enumerate(steps) if part in step]
        times = [steps[number][part] for number in bars]
        axes.bar(bars, times, bottom=[heights[number] for number in bars], color=f"C{colour}", label=part)
        for number in bars:
            heights[number] += steps[number][part]
    axes.set_xticks(range(len(profile)), list(profile))
    axes.set_title(f"milliseconds of a step by part, batch {batch}")
    axes.legend(fontsize=8)
