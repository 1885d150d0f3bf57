"""`slalom bench` measures what it says, on any model, and draws it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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
    assert (tmp_path / "out" / "bench.png").stat().st_size > 10_000


def test_a_picture_is_drawn_of_several_engines_and_sizes(tmp_path: Path) -> None:
    parts = {"LM passes": 5.0, "constraint: score": 2.0, "step": 7.5}
    found = {
        "step_over_generate": {"torch": {"1": 0.8, "20": 0.9}, "openvino": {"1": 0.2, "20": 0.4}},
        "scaling": {"length": {"20": 1.0, "100": 4.0}},
        "profile": {"torch": {"20": parts}, "openvino": {"20": {"LM passes": 1.0}}},
    }
    draw(found, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").stat().st_size > 10_000


@pytest.mark.parametrize("batches", ["1,x", "0,2"])
def test_a_wrong_list_of_batches_is_refused_in_a_sentence(batches: str) -> None:
    out = CliRunner().invoke(app, ["bench", "--batches", batches])
    assert out.exit_code == 2
    assert "batches is" in out.output
