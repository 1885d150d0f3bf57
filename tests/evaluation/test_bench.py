"""`slalom bench` measures what it says, on any model."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.decoding.climb import Climb
from slalom.evaluation import bench_memory, bench_start
from slalom.evaluation.bench_memory import RESET, Taken, megabytes, memory_over_generate, start_afresh
from slalom.evaluation.bench_plot import START
from slalom.evaluation.bench_profile import _timed_calls, _timed_passes
from slalom.evaluation.bench_steps import Stepper, time_in_turns
from slalom.frontends.cli import app
from tests.conftest import tiny_lm


def test_calls_take_turns_and_the_first_turn_is_not_counted() -> None:
    order: list[str] = []
    times = time_in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 4
    assert set(times) == {"a", "b"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny LM, saved."""
    lm = tiny_lm("llama-tied", positions=256)
    lm.model.save_pretrained(tmp_path / "tiny")
    lm.tokenizer.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.real
def test_the_bench_of_a_tiny_model_has_every_figure_and_a_picture(folder: Path, tmp_path: Path) -> None:
    words = ["bench", "--model", str(folder), "--engines", "torch", "--batches", "1,3", "--quick", "--json"]
    out = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "out")])
    assert out.exit_code == 0, out.output
    found = json.loads(out.stdout)
    for key in ("step_over_generate", "dab_step_over_generate", "looks_share", "decoded_tokens_per_second"):
        assert set(found[key]["torch"]) == {"1", "3"}
        assert all(figure > 0 for figure in found[key]["torch"].values())
    for figures in found["satisfied_over_generate"]["torch"].values():
        assert figures["climb, told"]["negative"]["n"] == 1
    assert found["machine"]["instructions"]
    parts = found["profile"]["torch"]["3"]
    assert parts["LM passes"] + parts["constraint"] < parts["step"]
    assert found["looks_share"]["torch"]["3"] == pytest.approx(parts["constraint"] / parts["step"], abs=0.01)
    start = found["start"]
    assert sum(start[part] for part in START) == pytest.approx(start["total"], abs=0.05)
    assert json.loads((tmp_path / "out" / "bench.json").read_text()) == found
    assert (tmp_path / "out" / "bench.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.skipif(not RESET.exists(), reason="this system does not say how much memory a process took")
def test_memory_is_what_a_run_takes_above_what_stood_before_it() -> None:
    taken: list[bytearray] = []
    before = start_afresh()
    assert before is not None
    taken.append(bytearray(b"1") * (64 << 20))
    taken.clear()
    peak = megabytes("VmHWM")
    assert peak is not None
    assert 60 < peak - before < 90
    again = start_afresh()
    peak = megabytes("VmHWM")
    assert again is not None
    assert peak is not None
    assert peak - again < 20  # the earlier peak is forgotten


def test_memory_is_compared_above_loading_and_as_a_whole_and_missing_where_it_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {"generate": Taken(500.0, 100.0), "torch": Taken(500.0, 250.0), "openvino": None}
    monkeypatch.setattr(bench_memory, "_in_a_process", lambda name, *case: taken[name])
    found = memory_over_generate("tiny", ("torch", "openvino"), {"batch 20": (20, 20)})
    assert found["memory_over_generate"] == {"batch 20": {"torch": 2.5}}
    assert found["peak_over_generate"] == {"batch 20": {"torch": 1.25}}
    taken["generate"] = None
    assert memory_over_generate("tiny", ("torch",), {"a": (1, 1)})["memory_over_generate"] == {"a": {}}


def test_decoded_tokens_are_those_whose_logits_were_asked_for(llama: SteerableModel) -> None:
    """As many as a draft's positions after the move, for every draft written: what waits is not counted."""
    wish = Keywords(["soup"])
    stepper = Stepper(llama, wish, 2, Climb(width=2, looks=4, top_k=5), 6)
    seconds: dict[str, float] = defaultdict(float)
    with _timed_passes(llama, seconds) as decoded:
        stepper.run(3)
    assert 0 < sum(decoded) < 3 * 2 * 2 * 6
    assert seconds["LM passes"] > 0
    before = list(decoded)
    stepper.run(1)
    assert decoded == before  # outside the block nothing is counted


def test_a_part_of_a_step_is_timed_only_inside_the_block() -> None:
    owner = SimpleNamespace(work=lambda: "done")
    original, seconds = owner.work, defaultdict(float)
    with _timed_calls(owner, "work", "part", seconds):
        assert owner.work() == "done"
    assert owner.work is original
    assert seconds["part"] > 0


def test_a_start_is_split_into_parts_that_add_up_and_the_first_run_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = iter([dict.fromkeys((*START, "total", "cpu"), 100.0), *({"total": n, "LM": n} for n in (3.0, 1.0, 2.0))])
    monkeypatch.setattr(bench_start, "_in_a_process", lambda model, engine: next(runs))
    monkeypatch.setattr(bench_start, "_help", lambda: 0.3)
    found = bench_start.time_start("tiny", "auto", 3)
    assert (found["total"], found["LM"], found["runs"]) == (2.0, 2.0, 3)


@pytest.mark.parametrize("batches", ["1,x", "0,2"])
def test_a_wrong_list_of_batches_is_refused_in_a_sentence(batches: str) -> None:
    out = CliRunner().invoke(app, ["bench", "--batches", batches])
    assert out.exit_code == 2
    assert "batches is" in out.output
