"""Estimates to plots: SVG text, the same for the same values."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from slalom.evaluation.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "climb": "#0b62c4",
    "dab": "#7a3fc4",
    "bolt": "#d1571f",
    "bolt-normalised": "#b98a00",
    "cold": "#2e8b57",
    "mucola": "#8a4fbf",
    "lm-steer": "#b0307a",
    "rerank": "#00838f",
    "best-of-n": "#5d4037",
    "none": "#66727f",
}
OTHER_COLOURS = ["#7cb342", "#ef6c00", "#3949ab"]
MARKERS = "osD^vPX*"


class Point(NamedTuple):
    """One strength of a sampler: its fluency and its control."""

    fluency: Estimate
    control: Estimate
    name: str = ""  # of the strength


class TimedPoint(NamedTuple):
    """A sampler: what a text costs, its control and its fluency."""

    label: str
    sampler: str
    seconds: Estimate
    control: Estimate
    fluency: Estimate  # perplexity; its interval is the median's


class Curve(NamedTuple):
    """Values over a knob, or over steps."""

    label: str
    sampler: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None


class Panel(NamedTuple):
    """Axes with curves."""

    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False


class Bars(NamedTuple):
    """Axes with one bar for each sampler."""

    y_label: str
    bars: list[tuple[str, str, float]]  # label, sampler, height


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def tradeoff_plot(series: dict[tuple[str, str], list[Point]], control: str, higher: bool) -> str:
    """Control against perplexity, a line through each sampler's strengths; `series` by label and sampler's name."""

    def draw(axes: Axes) -> None:
        for number, ((label, sampler), points) in enumerate(series.items()):
            colour = colour_of(sampler, number)
            marker = MARKERS[number % len(MARKERS)]
            x, y = [point.fluency.mean for point in points], [point.control.mean for point in points]
            width = 2.2 if sampler == "climb" else 1.4
            axes.plot(x, y, marker=marker, ms=6, color=colour, lw=width, ls=line_style(label), label=label)
            for point in points:
                axes.plot([point.fluency.low, point.fluency.high], [point.control.mean] * 2, color=colour, lw=0.8)
                axes.plot([point.fluency.mean] * 2, [point.control.low, point.control.high], color=colour, lw=0.8)
                if len(points) > 1:
                    axes.annotate(
                        point.name,
                        (point.fluency.mean, point.control.mean),
                        textcoords="offset points",
                        xytext=(6, 5),
                        fontsize=8,
                        color=colour,
                    )
        axes.set_xscale("log")
        plain_ticks(axes, "x")
        axes.set_xlabel("perplexity (lower is more fluent)")
        axes.set_ylabel(f"{control} ({'higher' if higher else 'lower'} is better)")
        if not higher:
            axes.invert_yaxis()
        axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)

    return to_svg(lambda grid: draw(grid[0]), columns=1, width=7.6, height=4.2)


def time_plot(points: list[TimedPoint], control: str, higher: bool) -> str:
    """Control, and beside it the median perplexity, against the median of seconds a text: a mark for each sampler."""
    width = 8.4

    def draw(grid: list[Axes]) -> None:
        for number, point in enumerate(points):
            x, colour = point.seconds.median, colour_of(point.sampler, number)
            marker, hollow = MARKERS[number % len(MARKERS)], line_style(point.label) == "--"
            heights = (point.control.mean, point.control), (point.fluency.median, point.fluency)
            for axes, (y, estimated) in zip(grid, heights, strict=True):
                axes.plot([x, x], [estimated.low, estimated.high], color=colour, lw=0.8)
                inside = "white" if hollow else colour
                axes.plot([x], [y], ls="", marker=marker, ms=7, mec=colour, mfc=inside, label=point.label)
        for axes in grid:
            axes.set_xscale("log")
            plain_ticks(axes, "x")
            axes.set_xlabel("seconds a text")
        grid[0].set_ylabel(f"{control} ({'higher' if higher else 'lower'} is better)")
        if not higher:
            grid[0].invert_yaxis()
        grid[1].set_yscale("log")
        plain_ticks(grid[1], "y")
        grid[1].set_ylabel("perplexity (lower is more fluent)")
        handles, labels = grid[0].get_legend_handles_labels()
        columns = legend_columns(labels, width)
        grid[0].figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)

    return to_svg(draw, columns=2, width=width, height=4.2)


def legend_columns(labels: list[str], width: float) -> int:
    """How many columns of a legend stand in a figure of so many inches: at most five, fewer for long labels."""
    inches = 0.6 + 0.085 * max(map(len, labels))  # the mark and the gap, and a letter at most
    return max(1, min(5, len(labels), int(width / inches)))


def panels(parts: list[Panel | Bars]) -> str:
    """Several axes side by side with one legend below."""

    def draw(grid: list[Axes]) -> None:
        for axes, panel in zip(grid, parts, strict=True):
            if isinstance(panel, Bars):
                draw_bars(axes, panel)
            else:
                draw_curves(axes, panel)
        handles, labels = grid[0].get_legend_handles_labels()
        if len(labels) > 1:
            legend = {"loc": "outside lower center", "ncols": min(4, len(labels)), "frameon": False}
            grid[0].figure.legend(handles, labels, **legend)

    return to_svg(draw, columns=len(parts), width=3.5 * len(parts), height=3.4)


def draw_curves(axes: Axes, panel: Panel) -> None:
    """A panel's curves, with bands where there are intervals."""
    for number, curve in enumerate(panel.curves):
        colour, line = colour_of(curve.sampler, number), line_style(curve.label)
        marker = MARKERS[number % len(MARKERS)] if len(curve.x) < 12 else ""
        axes.plot(curve.x, curve.y, marker=marker, ms=4.5, color=colour, lw=1.6, ls=line, label=curve.label)
        if curve.low and curve.high:
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.15, lw=0)
    if panel.log_x:
        axes.set_xscale("log")
        plain_ticks(axes, "x")
    if panel.log_y:
        axes.set_yscale("log")
        plain_ticks(axes, "y")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)


def draw_bars(axes: Axes, panel: Bars) -> None:
    """A bar for each sampler; variants of one are hatched."""
    for number, (label, sampler, height) in enumerate(panel.bars):
        hatch = "//" if line_style(label) == "--" else None
        axes.bar(number, height, color=colour_of(sampler, number), hatch=hatch, edgecolor="white", width=0.7)
        axes.annotate(f"{height:.1f}", (number, height), ha="center", va="bottom", fontsize=8)
    axes.set_xticks([])
    axes.set_xlabel("sampler")
    axes.set_ylabel(panel.y_label)


def to_svg(draw: Callable[[list[Axes]], None], columns: int, width: float, height: float) -> str:
    """An SVG element, without dates or random ids, so that it is the same every time."""
    import matplotlib

    with plot_style(matplotlib):
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width, height), layout="constrained")
        grid = list(figure.subplots(1, columns, squeeze=False)[0])
        for axes in grid:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(True, color="#e4e9ef", lw=0.7)
            axes.set_axisbelow(True)
        draw(grid)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    return svg[svg.index("<svg") :].strip()


def plot_style(matplotlib: Any) -> AbstractContextManager[None]:
    """Sizes and colours, and element ids that depend on the plot alone."""
    return matplotlib.rc_context(
        {"svg.hashsalt": "slalom", "font.size": 10, "axes.edgecolor": "#66727f", "axes.labelcolor": "#1c2430"}
    )


def plain_ticks(axes: Axes, which: str) -> None:
    """Decimal numbers instead of powers of ten on a logarithmic axis, few enough to be read."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    narrow = high / max(low, 1e-12) < 300
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def colour_of(sampler: str, number: int) -> str:
    """A sampler's own colour."""
    return COLOURS.get(sampler, OTHER_COLOURS[number % len(OTHER_COLOURS)])


def line_style(label: str) -> str:
    """Solid for a sampler as it is, dashed for a variant of it."""
    return "--" if ":" in label or "+" in label or "(" in label else "-"
