"""`slalom bench` measures what it says, on any model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slalom.evaluation.bench import time_in_turns
from slalom.frontends.cli import app
from tests.conftest import tiny_lm


def test_calls_take_turns_and_the_first_turn_is_not_counted() -> None:
    order: list[str] = []
    times = time_in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
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


@pytest.mark.parametrize("batches", ["1,x", "0,2"])
def test_a_wrong_list_of_batches_is_refused_in_a_sentence(batches: str) -> None:
    out = CliRunner().invoke(app, ["bench", "--batches", batches])
    assert out.exit_code == 2
    assert "batches is" in out.output
