"""The time left."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.evaluation.plan import plan
from slalom.evaluation.progress import WritingSpeed
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.tasks import Task
from tests.evaluation import tiny


def test_the_time_left_counts_each_sampler_at_its_own_pace(soup: Task) -> None:
    run = Run(Path(), RunSettings(tiny.cells(presets=("default",)), "quick"), {"soup": soup})
    one, two, *_ = plan(run, 6)
    slow = two._replace(cell=two.cell._replace(sampler="slow"))
    speed = WritingSpeed()
    assert speed.seconds_left([one], {}) is None
    speed.add(one, 1.0)
    speed.add(slow, 10.0)
    assert speed.seconds_left([one, slow], {}) == pytest.approx(11.0)
    assert speed.seconds_left([one, slow], {slow.cell.id: "cannot"}) == pytest.approx(1.0)
