"""Judging: every text of a folder by the same judge, whenever it was scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.evaluation import store
from slalom.evaluation.judges import JudgeInfo, JudgeInput, LoadJudge
from slalom.evaluation.run_folder import read_run
from slalom.evaluation.tasks import Task
from tests.evaluation import tiny

UPGRADED = 1000.0  # what the newer judge adds to every score


class Newer(tiny.Counting):
    """The same judge in a later revision, which may stop after some calls."""

    def __init__(self, name: str, calls: int | None = None) -> None:
        super().__init__(name)
        self.info = JudgeInfo(name, "a ruler", "r2")
        self.calls = calls

    def score(self, inputs: list[JudgeInput], reads: str) -> list[float | None]:
        if self.calls == 0:
            raise KeyboardInterrupt
        self.calls = None if self.calls is None else self.calls - 1
        return [UPGRADED + float(len(one.shown(reads))) for one in inputs]  # type: ignore[arg-type]


def upgraded(calls: int | None = None) -> dict[str, LoadJudge]:
    """The judges with a newer one of perplexity."""
    return tiny.judges() | {"perplexity": lambda: Newer("perplexity", calls)}


def scores_in(folder: Path, judge: str) -> list[float]:
    return [line["text"][judge] for line in store.read(folder / "scores.jsonl")]


def test_texts_that_another_revision_scored_are_scored_anew(soup: Task, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny.run(out, soup, tiny.cells(presets=("default",)))
    tiny.run(out, soup, tiny.cells(presets=("hot",)), judged_by=upgraded())
    assert len(scores_in(out, "perplexity")) == 2 * 24
    assert all(score > UPGRADED for score in scores_in(out, "perplexity"))
    assert all(score < UPGRADED for score in scores_in(out, "acceptability"))
    assert read_run(out).judge_info["perplexity"]["revision"] == "r2"


def test_interrupted_while_scoring_anew_no_score_of_the_older_revision_is_left(soup: Task, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny.run(out, soup, tiny.cells(presets=("default",)))
    with pytest.raises(KeyboardInterrupt):
        tiny.run(out, soup, judged_by=upgraded(calls=2))
    tiny.run(out, soup, judged_by=upgraded())
    assert len(scores_in(out, "perplexity")) == 2 * 24
    assert all(score > UPGRADED for score in scores_in(out, "perplexity"))


def test_a_newer_judge_leaves_a_finished_folder_as_it_is(soup: Task, tmp_path: Path) -> None:
    out = tmp_path / "out"
    tiny.run(out, soup, tiny.cells(presets=("default",)))
    tiny.run(out, soup, tiny.cells(presets=("default",)), judged_by=upgraded())
    assert all(score < UPGRADED for score in scores_in(out, "perplexity"))
    assert read_run(out).judge_info["perplexity"]["revision"] == "r1"
