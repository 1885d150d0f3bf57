"""The picture of a benchmark holds every figure."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slalom.evaluation.bench_plot import draw_bench


def test_the_picture_shows_every_figure_and_a_part_of_a_step_in_one_colour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = {"both wishes": {"median": 2.0}, "negative": {"median": 9.0}}
    found = {
        "step_over_generate": {"torch": {"1": 0.8, "20": 0.9}, "openvino": {"1": 0.2, "20": 0.4}},
        "dab_step_over_generate": {"torch": {"1": 1.8, "20": 1.9}},
        "satisfied_over_generate": {
            "torch": {"1": {"climb, told": text, "bolt, told": {"negative": {"median": 40.0}}}}
        },
        "scaling": {"length": {"torch": {"20": 1.0, "100": 4.0}}},
        "profile": {
            "torch": {"20": {"LM passes": 5.0, "constraint": 2.0, "step": 7.5, "decoded tokens a second": 99.0}},
            "openvino": {"20": {"constraint": 1.0, "rest": 3.0}},
        },
        "memory_over_generate": {"batch 20": {"torch": 1.2}},
        "start": {"python": 0.1, "imports": 2.0, "LM": 0.5, "guide": 0.3, "first draft": 0.6, "total": 3.5, "runs": 5},
    }
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_bench(found, tmp_path / "bench.png")
    steps, texts, growth, profile, memory, start = drawn[0].axes

    assert heights(steps) == [0.8, 0.9, 0.2, 0.4, 1.8, 1.9]
    assert legend(steps) == ["climb, torch", "climb, openvino", "dab, torch"]
    assert heights(texts) == [2.0, 40.0]  # both wishes together where there are both
    assert [list(line.get_ydata()) for line in growth.lines] == [[1.0, 4.0], [1.0, 5.0]]  # measured, and linear
    parts = {
        (round(bar.get_center()[0]), bar.get_y(), bar.get_height()): bar.get_facecolor()
        for bars in profile.containers
        for bar in bars
        if bar.get_height()
    }
    assert set(parts) == {(0, 0.0, 5.0), (0, 5.0, 2.0), (1, 0.0, 1.0), (1, 1.0, 3.0)}
    assert parts[0, 5.0, 2.0] == parts[1, 0.0, 1.0]  # the constraint's, on either engine
    assert legend(profile) == ["LM passes", "constraint", "rest"]
    assert heights(memory) == [1.2]
    assert heights(start) == pytest.approx([0.1, 2.0, 0.5, 0.3, 0.6])


def test_a_panel_without_figures_stays_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "step_over_generate": {"torch": {"1": 0.8}},
        "dab_step_over_generate": {"torch": {"1": 0.8}},
        "satisfied_over_generate": {"torch": {"1": {"climb, told": {"negative": {"median": 2.0}}}}},
        "profile": {"torch": {"1": {"constraint": 2.0, "step": 7.5}}},
        "memory_over_generate": {},
        "start": {"python": 0.1, "imports": 2.0, "LM": 0.5, "guide": 0.3, "first draft": 0.6, "total": 3.5, "runs": 5},
    }
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    draw_bench(found, tmp_path / "bench.png")
    assert [axes.get_visible() for axes in drawn[0].axes] == [True, True, False, True, False, True]


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bars in axes.containers for bar in bars]


def legend(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]
