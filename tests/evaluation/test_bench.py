"""`slalom bench` measures what it says, on any model, and draws it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from typer.testing import CliRunner

from slalom.evaluation.bench import draw, race
from slalom.frontends.cli import app
from tests.conftest import tiny_lm


def test_a_race_gives_each_contender_as_many_turns_and_forgets_the_first() -> None:
    order: list[str] = []
    times = race({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 4
    assert set(times) == {"a", "b"}


@pytest.mark.real
def test_the_bench_of_a_tiny_model_has_every_figure_and_a_picture(tmp_path: Path) -> None:
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(tmp_path / "tiny")
    lm.tokenizer.save_pretrained(tmp_path / "tiny")
    words = ["bench", "--model", str(tmp_path / "tiny"), "--engines", "torch", "--batches", "1,3", "--quick", "--json"]
    out = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    assert set(found["step_over_generate"]["torch"]) == {"1", "3"}
    assert all(ratio > 0 for ratio in found["step_over_generate"]["torch"].values())
    assert found["until_over_fixed"] > 0
    assert found["memory_over_generate"] > 0.5
    assert found["profile"]["torch"]["3"]["LM passes"] < found["profile"]["torch"]["3"]["step"]
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


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
    draw(found, tmp_path / "bench.png")
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


@pytest.mark.parametrize("batches", ["1,x", "0,2"])
def test_a_wrong_list_of_batches_is_refused_in_a_sentence(batches: str) -> None:
    out = CliRunner().invoke(app, ["bench", "--batches", batches])
    assert out.exit_code == 2
    assert "batches is" in out.output
