"""A whole evaluation: every text once, whatever happens; what could not be measured is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slalom.constraints.constraint import Constraint
from slalom.decoding.sampler import Preset
from slalom.errors import SlalomError
from slalom.evaluation import report, store
from slalom.evaluation.cells import Cell
from slalom.evaluation.document import html, markdown
from slalom.evaluation.run_evaluation import run_evaluation
from slalom.evaluation.run_folder import LOCK, RunSettings
from slalom.evaluation.summary import read_results
from slalom.evaluation.tasks import Task, load_task
from tests.evaluation import tiny

ROOT = Path(__file__).parent.parent.parent


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder but for what was timed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LOCK and not path.name.endswith("-time.svg"):
            found[str(path.relative_to(folder))] = path.read_text(encoding="utf-8")
    records = [json.loads(line) for line in found["generations.jsonl"].splitlines()]
    untimed = [record | {"seconds": 1.0} for record in records]
    found["generations.jsonl"] = json.dumps(untimed)
    blocks = report.blocks_of([read_results(folder)._replace(records=untimed)])
    return found | {"report.md": markdown(blocks), "report.html": html("", blocks)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run that nothing disturbed, and its task's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(tiny.SAMPLERS, "drawn", tiny.Drawn)
        home = tmp_path_factory.mktemp("whole")
        tiny.run(home / "out", tiny.task_in(home))
        return home, contents(home / "out")


def test_every_text_asked_for_is_written_once_with_all_that_makes_it(whole: tuple[Path, dict[str, str]]) -> None:
    records = json.loads(whole[1]["generations.jsonl"])
    assert len({record["id"] for record in records}) == len(records) == 2 * (2 * 3) * 2 * 2
    first = records[0]
    assert {"seed", "knobs", "versions", "seconds", "passes", "rows", "steps", "engine", "temperature"} <= set(first)
    assert first["knobs"] == {"heat": 1.0}
    assert set(first["versions"]) == {"slalom", "torch", "transformers"}
    assert {record["seed"] for record in records} == {0, 1}


def test_scores_are_one_line_a_text_in_the_order_of_the_texts(whole: tuple[Path, dict[str, str]]) -> None:
    records = json.loads(whole[1]["generations.jsonl"])
    scores = [json.loads(line) for line in whole[1]["scores.jsonl"].splitlines()]
    assert [score["id"] for score in scores] == [record["id"] for record in records]
    for record, score in zip(records, scores, strict=True):
        length = float(len(record["prompt"] + record["text"]))
        assert score["text"] == {"acceptability": length, "perplexity": length, "bertscore": length}


def test_killed_while_writing_and_while_judging_it_ends_with_the_same_files(
    whole: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    home, expected = whole
    out = tmp_path / "out"
    for file, lines in (
        ("generations.jsonl", 10),
        ("generations.jsonl", 30),
        ("scores.jsonl", 5),
        ("scores.jsonl", 60),
    ):
        _killed_once_there_are(out, home / "soup.toml", out / file, lines)
    assert not (out / "report.md").exists()
    tiny.run(out, tiny.load_task(str(home / "soup.toml")))
    assert contents(out) == expected


def _killed_once_there_are(out: Path, task: Path, file: Path, lines: int) -> None:
    """Start the program, kill -9 it when the file has so many lines."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.evaluation.tiny", str(out), str(task)], cwd=ROOT, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 600
    while not (file.exists() and file.read_bytes().count(b"\n") >= lines):
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("share", [0.03, 0.4, 0.99])
def test_cut_off_anywhere_the_files_are_the_same_in_the_end(
    whole: tuple[Path, dict[str, str]], tmp_path: Path, share: float
) -> None:
    home, expected = whole
    out = tmp_path / "out"
    tiny.run(out, tiny.load_task(str(home / "soup.toml")))
    for name in ("generations.jsonl", "scores.jsonl"):
        content = (out / name).read_bytes()
        (out / name).write_bytes(content[: int(share * len(content))])
    tiny.run(out, tiny.load_task(str(home / "soup.toml")))
    assert contents(out) == expected


def test_a_finished_run_writes_nothing_anew(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup)

    def never() -> Any:
        raise AssertionError("there was nothing left to do")

    before = (tmp_path / "out" / "generations.jsonl").stat()
    tiny.run(tmp_path / "out", soup, lm=never, judged_by=dict.fromkeys(tiny.judges(), never))
    assert (tmp_path / "out" / "generations.jsonl").stat() == before


def test_samplers_can_be_added_to_a_run(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "grown" / "out", soup, tiny.cells(presets=("default",)))
    tiny.run(tmp_path / "grown" / "out", soup, tiny.cells(presets=("hot",)))
    tiny.run(tmp_path / "at once" / "out", soup, tiny.cells())
    assert contents(tmp_path / "grown" / "out") == contents(tmp_path / "at once" / "out")


def test_a_judge_that_cannot_be_had_leaves_its_metric_missing_and_never_0(soup: Task, tmp_path: Path) -> None:
    found = tiny.run(tmp_path / "out", soup, judged_by=tiny.judges(missing=("perplexity",)))
    assert found["missing_judges"] == {"perplexity": "no perplexity today"}
    for row in found["tasks"]["soup"]:
        assert row["metrics"]["perplexity"] is None
        assert row["metrics"]["acceptability"]["mean"] > 0
    assert "perplexity" not in (tmp_path / "out" / "scores.jsonl").read_text()
    again = tiny.run(tmp_path / "out", soup)
    assert again["missing_judges"] == {}
    assert again["tasks"]["soup"][0]["metrics"]["perplexity"]["mean"] > 0


def test_a_sampler_that_cannot_do_a_task_is_left_out_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "soup.toml").write_text(
        tiny.TASK.replace('["soup"]', '["never"]').replace('["rain", "cold"]', '["never"]')
    )
    task = tiny.load_task(str(tmp_path / "soup.toml"))
    with pytest.raises(SlalomError, match="drawn never says never"):
        tiny.run(tmp_path / "alone", task)
    found = tiny.run(tmp_path / "out", task, (*tiny.cells(presets=("default",)), Cell("soup", "dab")))
    assert found["skipped"] == {"soup/drawn/x1": "drawn never says never"}
    assert [row["sampler"] for row in found["tasks"]["soup"]] == ["dab"]


def test_judges_can_be_shown_both_the_whole_text_and_the_continuation(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup, tiny.cells(presets=("default",)), both=True)
    record = store.read(tmp_path / "out" / "generations.jsonl")[0]
    score = store.read(tmp_path / "out" / "scores.jsonl")[0]
    assert score["text"]["perplexity"] == len(record["prompt"] + record["text"])
    assert score["continuation"]["perplexity"] == len(record["text"].strip())
    assert "Judges read the continuation alone" in (tmp_path / "out" / "report.md").read_text()


def test_with_the_prefix_the_model_reads_it_and_the_judges_do_not(soup: Task, tmp_path: Path) -> None:
    read: list[str] = []

    class Listening(tiny.SteerableModel):
        def steer(self, prompts: Any, *args: Any, **kwargs: Any) -> Any:
            read.extend(prompts)
            return super().steer(prompts, *args, **kwargs)

    lm = tiny.tiny_lm("llama-tied")
    tiny.run(
        tmp_path / "out",
        soup,
        (Cell("soup", "drawn", prefix=True),),
        lm=lambda: Listening(lm.model, lm.tokenizer, lm.name),
    )
    assert "Mind kitchen. the food" in read
    assert store.read(tmp_path / "out" / "generations.jsonl")[0]["prompt"] == "the food"
    score = store.read(tmp_path / "out" / "scores.jsonl")[0]
    assert score["text"]["perplexity"] < len("Mind kitchen. the food")


def test_a_task_changed_between_two_runs_is_noticed(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup)
    shorter = soup.model_copy(update={"prompts": ["we"]})
    with pytest.raises(SlalomError, match="was a task changed meanwhile"):
        tiny.run(tmp_path / "out", shorter)


def test_texts_of_another_prompt_are_not_taken_for_those_of_todays(soup: Task, tmp_path: Path) -> None:
    tiny.run(tmp_path / "out", soup)
    other = soup.model_copy(update={"prompts": ["the food", "they", "a day by the river"]})
    with pytest.raises(SlalomError, match=r"drawn were written with prompt 'we', which is 'they' now; .* --anew"):
        tiny.run(tmp_path / "out", other)
    assert "they" not in {record["prompt"] for record in store.read(tmp_path / "out" / "generations.jsonl")}
    tiny.run(tmp_path / "out", other, anew=True)
    tiny.run(tmp_path / "fresh" / "out", other)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh" / "out")  # and judged anew, too


def test_texts_of_other_settings_are_not_taken_for_those_of_todays(
    soup: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = tiny.cells(presets=("default",))
    tiny.run(tmp_path / "out", soup, cells)

    class Warmer(tiny.Drawn):
        @classmethod
        def presets(cls, constraint: Constraint) -> dict[str, Preset]:
            return {"default": Preset(cls(1.5), 2, temperature=1.5)}

    monkeypatch.setitem(tiny.SAMPLERS, "drawn", Warmer)
    with pytest.raises(SlalomError, match=r"drawn were written with temperature 1\.0, which is 1\.5 now"):
        tiny.run(tmp_path / "out", soup, cells)
    tiny.run(tmp_path / "out", soup, cells, anew=True)
    records = store.read(tmp_path / "out" / "generations.jsonl")
    assert {(record["temperature"], record["knobs"]["heat"]) for record in records} == {(1.5, 1.5)}
    assert len(store.read(tmp_path / "out" / "scores.jsonl")) == len(records)


def test_every_stage_is_reported(soup: Task, tmp_path: Path) -> None:
    stages: list[str] = []
    settings = RunSettings(tiny.cells(presets=("default",)), "quick", "tiny", "torch")
    run_evaluation(
        tmp_path / "out",
        settings,
        [soup],
        lambda: tiny.tiny_lm("llama-tied"),
        tiny.judges(),
        lambda progress: stages.append(progress.stage),
    )
    assert stages[0] == "soup: drawn"
    assert "judging: perplexity" in stages


def test_without_scipy_nothing_is_begun(soup: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.stats", None)
    with pytest.raises(SlalomError, match="bootstrap intervals need scipy"):
        tiny.run(tmp_path / "out", soup)
    assert not (tmp_path / "out").exists()


def test_a_size_with_a_temperature_draws_every_samplers_texts(tmp_path: Path) -> None:
    (tmp_path / "soup.toml").write_text(tiny.TASK.replace("lengths = [4, 6]", "lengths = [6]\ntemperature = 1.0"))
    task = load_task(str(tmp_path / "soup.toml"))
    tiny.run(tmp_path / "out", task, (Cell("soup", "none"),))
    records = store.read(tmp_path / "out" / "generations.jsonl")
    assert {record["temperature"] for record in records} == {1.0}
    assert len({record["text"] for record in records}) == 3 * 2  # of three prompts and two samples
