"""A queue does its runs one after the other, goes on where it stopped, and says how much is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.evaluation import store, studies
from slalom.evaluation.queue import hours_left, left, read_queue, run_queue
from slalom.evaluation.run_evaluation import run_evaluation
from slalom.evaluation.typed import TypedRun, checked
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


def run(file: Path, said: list[str] | None = None, missing: tuple[str, ...] = ()) -> dict[str, str]:
    said = [] if said is None else said
    loaded = tiny_lm("llama-tied")
    return run_queue(
        read_queue(file),
        lambda model, engine: loaded,
        lambda name: tiny.judges(0, missing),
        lambda now: None,
        said.append,
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


def test_texts_that_are_not_judged_yet_are_told(file: Path) -> None:
    run(file)
    assert [one.judged for one in left(read_queue(file))] == [24, 48]
    scores = file.parent / "results" / "first" / "scores.jsonl"
    lines = store.read(scores)
    del lines[3]["text"]["bertscore"]
    store.rewrite(scores, lines[:20])
    with scores.open("a", encoding="utf-8") as half:
        half.write(json.dumps(lines[20])[:-5])  # as a kill leaves it
    assert [(one.done, one.total, one.judged) for one in left(read_queue(file))] == [(24, 24, 19), (48, 48, 48)]
    assert scores.read_text().endswith(json.dumps(lines[20])[:-5])  # only read: another process may be writing


def test_a_run_without_one_of_its_judges_has_failed(file: Path) -> None:
    said: list[str] = []
    why = "not judged by perplexity (no perplexity today)"
    assert run(file, said, missing=("perplexity",)) == dict.fromkeys(("first", "second"), why)
    assert f"first failed: {why}" in said
    assert [(one.done, one.judged) for one in left(read_queue(file))] == [(24, 0), (48, 0)]
    assert run(file) == {}


def test_samplers_that_cannot_do_a_task_are_counted(file: Path) -> None:
    words = tiny.TASK.replace('["soup"]', '["never"]').replace('["rain", "cold"]', '["never"]')
    (file.parent / "soup.toml").write_text(words)
    assert list(run(file)) == ["first"]  # which has that sampler alone
    assert [(one.done, one.total, one.skipped) for one in left(read_queue(file))] == [(0, 0, 1), (24, 24, 1)]


def test_half_a_chunk_is_not_done(file: Path) -> None:
    run(file)
    generations = file.parent / "results" / "first" / "generations.jsonl"
    records = store.read(generations)
    store.rewrite(generations, records[:-1])
    assert left(read_queue(file))[0].done == 24 - sum(one["chunk"] == records[-1]["chunk"] for one in records)


@pytest.mark.parametrize(
    ("line", "begun_with"),
    [("seed = 5", "seed 0, not 5"), ('model = "small"', "model 'tiny', not 'small'")],
)
def test_a_folder_begun_with_other_settings_is_not_done(file: Path, line: str, begun_with: str) -> None:
    run(file)
    old = 'model = "tiny"\n' if line.startswith("model") else ""
    file.write_text(QUEUE.replace(f"{old}engine", f"{line}\nengine", 1))
    first, second = left(read_queue(file))
    assert (first.done, first.total, first.begun_with) == (0, 24, begun_with)
    assert (second.done, second.total, second.begun_with) == (48, 48, None)
    assert "first" in run(file)


UNITS = """
[[runs]]
name = "moves"
tasks = ["exploration"]
samplers = "{}"
model = "tiny"
engine = "torch"
"""


def test_units_count_if_the_queue_asks_for_them_and_their_sampler_is_not_left_out(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studies, "TASK", str(file.parent / "soup.toml"))
    monkeypatch.setattr(studies, "LENGTH", 6)
    monkeypatch.setitem(studies.SIZES, "quick", studies.StudySize(2, 1, 2))
    file.write_text(UNITS.format("drawn,drawn:hot"))
    assert run(file) == {}
    (state,) = left(read_queue(file))
    assert (state.done, state.total, state.seconds, state.judged, state.skipped) == (4, 4, 0.0, None, 0)
    file.write_text(UNITS.format("drawn,none"))
    (state,) = left(read_queue(file))
    assert (state.done, state.total, state.seconds) == (2, 4, None)
    saved = store.read_json(file.parent / "moves" / "run.json")
    store.write_json(file.parent / "moves" / "run.json", saved | {"skipped": {"soup/none/x1": "it does not move"}})
    (state,) = left(read_queue(file))
    assert (state.done, state.total, state.seconds, state.skipped) == (2, 2, 0.0, 1)


def test_a_run_of_a_queue_can_be_done_again_by_the_command_its_report_prints(file: Path) -> None:
    file.write_text(QUEUE.replace('samplers = "drawn"', 'samplers = "drawn"\nknobs = { heat = 2 }', 1))
    assert run(file) == {}
    folder = file.parent / "results" / "first"
    before = (folder / "generations.jsonl").read_text()
    assert "--knob heat=2.0 " in (folder / "report.md").read_text()
    by_hand = TypedRun(
        tasks=[str(file.parent / "soup.toml")], samplers="drawn", knobs={"heat": "2"}, model="tiny", engine="torch"
    )
    settings, tasks = checked(by_hand)
    run_evaluation(folder, settings, tasks, lambda: tiny_lm("llama-tied"), tiny.judges(), lambda now: None)
    assert (folder / "generations.jsonl").read_text() == before


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
        ('name = "first"', 'name = "first"\njudges = "papr"', "first: unknown judges 'papr'; choose from ours, paper"),
        (
            'tasks = ["soup.toml"]',
            'tasks = ["sentiment"]\nprefix = true',
            "first: the task sentiment has no prefix; leave",
        ),
        ('tasks = ["soup.toml"]', 'tasks = ["exploration"]\npreset = "huge"', "first: unknown preset 'huge'"),
        ('samplers = "drawn"', 'samplers = "drawn,dab"\nknobs = { heat = 2 }', "first: dab: unknown knob 'heat'"),
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
    assert state["detox-drawn"] == 6 * 100 * 5
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
