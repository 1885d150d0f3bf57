"""The picture of a benchmark holds every figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slalom.evaluation.bench_plot import draw_bench


def test_the_picture_shows_every_ratio_the_growth_and_the_parts_of_a_step_in_one_colour_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"LM passes": 5.0, "bias": 0.5, "constraint: score": 2.0, "of which head": 1.0, "step": 7.5}
    found = {
        "step_over_generate": {"torch": {"1": 0.8, "20": 0.9}, "openvino": {"1": 0.2, "20": 0.4}},
        "scaling": {"length": {"20": 1.0, "100": 4.0}},
        "profile": {"torch": {"20": parts}, "openvino": {"20": {"constraint: score": 1.0, "rest": 3.0}}},
    }
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_bench(found, tmp_path / "bench.png")
    ratios, growth, profile = drawn[0].axes

    assert [bar.get_height() for bars in ratios.containers for bar in bars] == [0.8, 0.9, 0.2, 0.4]
    assert legend(ratios) == ["torch", "openvino"]
    assert [list(line.get_ydata()) for line in growth.lines] == [[1.0, 4.0], [1.0, 5.0]]  # measured, and linear
    bars = [bar for bars in profile.containers for bar in bars]
    stacked = {(round(bar.get_center()[0]), bar.get_y(), bar.get_height()): bar.get_facecolor() for bar in bars}
    assert set(stacked) == {(0, 0.0, 5.0), (0, 5.0, 0.5), (0, 5.5, 2.0), (1, 0.0, 1.0), (1, 1.0, 3.0)}
    assert stacked[0, 5.5, 2.0] == stacked[1, 0.0, 1.0]  # the score's, on either engine
    assert len(set(stacked.values())) == 4
    assert legend(profile) == ["LM passes", "bias", "constraint: score", "rest"]


def legend(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]
