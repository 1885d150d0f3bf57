"""What the tests of the evaluation share."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.decoding import SAMPLERS
from slalom.evaluation.tasks import Task
from tests.evaluation import tiny


@pytest.fixture(autouse=True)
def _drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick sampler is known for as long as a test takes."""
    monkeypatch.setitem(SAMPLERS, "drawn", tiny.Drawn)


@pytest.fixture
def soup(tmp_path: Path) -> Task:
    """A tiny task, read from its file."""
    return tiny.task_in(tmp_path)
