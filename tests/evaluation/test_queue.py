"""A queue does its runs one after the other, goes on where it stopped, and says how much is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.queue import hours_left, left, read_queue, run_queue
from tests.conftest import tiny_lm
from tests.evaluation import tiny

ROOT = Path(__file__).parents[2]
QUEUE = """
out = "results"

[[runs]]
name = "first"
tasks = ["soup.toml"]
samplers = "drawn"
model = "tiny"
engine = "torch"

[[runs]]
name = "second"
what = "with another preset"
tasks = ["soup.toml"]
samplers = "drawn:hot,none+told"
model = "tiny"
engine = "torch"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    tiny.task_in(tmp_path)
    (tmp_path / "queue.toml").write_text(QUEUE)
    return tmp_path / "queue.toml"


def run(file: Path, said: list[str] | None = None) -> dict[str, str]:
    said = [] if said is None else said
    loaded = tiny_lm("llama-tied")
    return run_queue(
        read_queue(file), lambda model, engine: loaded, lambda judges: tiny.judges(), lambda now: None, said.append
    )


def test_every_run_is_done_in_its_own_folder_and_the_time_left_is_told(file: Path) -> None:
    entries = read_queue(file)
    assert [(one.done, one.total, one.seconds) for one in left(entries)] == [(0, 24, None), (0, 48, None)]
    assert hours_left(left(entries)) == "nothing timed yet"
    said: list[str] = []
    assert run(file, said) == {}
    assert (file.parent / "results" / "second" / "report.md").exists()
    assert said[0] == "1 of 2: first, nothing timed yet"
    assert said[1].startswith("2 of 2: second, about 0.0 h of writing left, besides 1 of 2 runs")
    assert [(one.done, one.total) for one in left(entries)] == [(24, 24), (48, 48)]


def test_a_stopped_queue_goes_on_where_it_was(file: Path) -> None:
    run(file)
    generations = file.parent / "results" / "second" / "generations.jsonl"
    records = store.read(generations)
    chunk = records[-1]["chunk"]
    store.rewrite(generations, [record for record in records if record["chunk"] != chunk])
    before = left(read_queue(file))[1]
    assert before.done < before.total
    assert before.seconds is not None
    run(file)
    assert [record["text"] for record in store.read(generations)] == [record["text"] for record in records]
    assert left(read_queue(file))[1].seconds == 0


def test_a_run_that_fails_is_named_and_the_next_one_begins(file: Path) -> None:
    (file.parent / "results" / "first").mkdir(parents=True)
    (file.parent / "results" / "first" / "mine.txt").write_text("not an evaluation")
    failed = run(file)
    assert list(failed) == ["first"]
    assert "holds no evaluation" in failed["first"]
    assert (file.parent / "results" / "second" / "report.md").exists()


def test_a_run_that_fails_unexpectedly_is_named_by_its_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise IndexError("too far")

    said: list[str] = []
    monkeypatch.setattr("slalom.evaluation.queue.run_evaluation", breaks)
    assert run(file, said) == dict.fromkeys(("first", "second"), "IndexError: too far")
    assert "first failed: IndexError: too far" in said


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('name = "second"', 'name = "first"', "two runs are called 'first'"),
        ('samplers = "drawn"', 'samplers = "drawm"', "first: unknown sampler 'drawm'; choose from"),
        ('model = "tiny"', 'modell = "tiny"', "runs.0.modell: Extra inputs are not permitted"),
        (
            'name = "first"',
            'name = "first"\npreset = "huge"',
            "first: unknown preset 'huge' of soup; choose from quick",
        ),
    ],
)
def test_a_queue_with_a_mistake_is_refused_before_anything_begins(file: Path, old: str, new: str, why: str) -> None:
    file.write_text(QUEUE.replace(old, new, 1))
    with pytest.raises(SlalomError) as error:
        read_queue(file)
    assert why in str(error.value)


def test_the_plan_of_the_studies_is_a_queue_that_can_be_run() -> None:
    entries = {entry.name: entry for entry in read_queue(ROOT / "docs" / "results" / "studies.toml")}
    state = {one.name: one.total for one in left(list(entries.values()))}
    assert state["detox-drawn"] == 7 * 100 * 5
    assert state["keywords-all-topics"] == 7 * 7 * 15
    assert state["exploration-ten-prompts"] == 3 * 10
    everyday = {(cell.sampler, cell.told) for cell in entries["everyday"].run.settings.cells}
    names = ("climb", "none", "best-of-n", "rerank", "dab", "bolt", "lm-steer", "cold", "mucola")
    assert everyday == {(name, told) for name in names for told in (False, True)}
    (drawn,) = entries["detox-drawn"].run.tasks
    assert drawn.size("drawn").temperature == 1.0


def test_a_folder_that_cannot_be_read_fails_its_own_run_alone(file: Path) -> None:
    run(file)
    results = file.parent / "results"
    with (results / "first" / "generations.jsonl").open("a", encoding="utf-8") as lines:
        lines.write("{broken\n")
    (results / "second" / "report.md").unlink()
    said: list[str] = []
    assert list(run(file, said)) == ["first"]
    assert said[0].startswith("1 of 2: first, time left unknown")
    assert (results / "second" / "report.md").exists()
