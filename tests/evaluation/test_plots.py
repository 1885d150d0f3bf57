"""A legend stands within its figure."""

from __future__ import annotations

import pytest

from slalom.evaluation.plots import legend_columns


@pytest.mark.parametrize(
    "labels", [["none", "climb", "dab"], [f"best-of-n + prefix + told {i}" for i in range(16)], ["x" * 200]]
)
def test_a_legend_is_no_wider_than_its_figure(labels: list[str]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, columns = 8.4, legend_columns(labels, 8.4)
    figure = Figure(figsize=(width, 4.2))
    FigureCanvasAgg(figure)
    for label in labels:
        figure.gca().plot([0], [0], ls="", marker="o", ms=7, label=label)
    handles, _ = figure.gca().get_legend_handles_labels()
    legend = figure.legend(handles, labels, ncols=columns, frameon=False)
    figure.canvas.draw()
    assert columns == 1 or legend.get_window_extent().width <= figure.bbox.width
