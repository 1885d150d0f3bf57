"""A run's settings to chunks, each with a key of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.plan import plan
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.tasks import Task


def planned(soup: Task, *cells: Cell) -> list[str]:
    return [chunk.key for chunk in plan(Run(Path("out"), RunSettings(cells, "quick"), {"soup": soup}), 4)]


def test_every_chunk_has_a_key_of_its_own(soup: Task) -> None:
    keys = planned(soup, Cell("soup", "drawn"), Cell("soup", "drawn", "hot"))
    assert len(set(keys)) == len(keys) == 16


def test_two_cells_of_one_id_are_refused(soup: Task) -> None:
    typed, written = (Cell("soup", "drawn", knobs=(("heat", heat),)) for heat in ("2", 2))
    with pytest.raises(SlalomError, match="soup/drawn/x1/heat=2/word/0/0/4 is planned twice"):
        planned(soup, typed, written)
