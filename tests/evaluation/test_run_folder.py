"""A folder holds one evaluation, begun one way, written by one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.run_folder import RunSettings, file_lock, read_run, start_run
from slalom.evaluation.tasks import Task
from tests.evaluation import tiny


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"seed": 3}, "was begun with seed 0, not 3"),
        ({"model": "other"}, "was begun with model 'tiny', not 'other'"),
        ({"judges": "paper"}, "was begun with judges 'ours', not 'paper'"),
        ({"study": "ablation"}, "holds another study"),
    ],
)
def test_a_folder_begun_otherwise_is_refused(
    soup: Task, tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    before = RunSettings(tiny.cells(), "quick", "tiny", "torch")
    (tmp_path / "out").mkdir()
    start_run(tmp_path / "out", before, {"soup": soup})
    with pytest.raises(SlalomError, match=complaint):
        start_run(tmp_path / "out", replace(before, **change), {"soup": soup})


def test_a_folder_of_something_else_is_left_alone(soup: Task, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    with pytest.raises(SlalomError, match="holds no evaluation; give a new folder"):
        tiny.run(tmp_path / "thesis", soup)
    with pytest.raises(SlalomError, match="cannot be written"):
        tiny.run(tmp_path / "thesis" / "chapter.txt", soup)
    with pytest.raises(SlalomError, match="holds no evaluation"):
        read_run(tmp_path / "thesis")


def test_two_processes_do_not_write_into_one_folder(soup: Task, tmp_path: Path) -> None:
    with file_lock(tmp_path / "out"), pytest.raises(SlalomError, match="another process is evaluating"):
        tiny.run(tmp_path / "out", soup)


def test_settings_are_read_as_they_were_written(soup: Task, tmp_path: Path) -> None:
    settings = RunSettings((Cell("soup", "drawn", "hot", 0.5, True, (("heat", 0.5),)),), "quick", "tiny", "torch", 7)
    with file_lock(tmp_path / "out"):
        start_run(tmp_path / "out", settings, {"soup": soup})
    assert read_run(tmp_path / "out").settings == settings
