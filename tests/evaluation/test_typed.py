"""What is typed, on a command line or in a queue's file, to settings and tasks; what cannot be done is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.typed import TypedRun, checked


def cells(**typed: Any) -> tuple[Cell, ...]:
    return checked(TypedRun(**({"tasks": ["sentiment"]} | typed))).settings.cells


def test_a_sampler_typed_in_two_ways_is_one_cell() -> None:
    assert cells(samplers="dab,dab:default") == (Cell("sentiment", "dab"),)
    assert len(cells(samplers="dab", strengths="0.5,0.500000001")) == 1  # they have the same id


def test_knobs_have_their_own_types_whoever_typed_them() -> None:
    (typed,) = cells(samplers="climb", knobs={"looks": "64", "tau": "1", "fluency": "2"})
    (written,) = cells(samplers="climb", knobs={"looks": 64, "tau": 1, "fluency": 2})
    assert typed == written
    assert typed.knobs == (("looks", 64), ("tau", 1.0), ("fluency", 2.0))
    assert typed.id == "sentiment/climb/x1/looks=64/tau=1.0/fluency=2.0"


def test_a_knob_that_a_sampler_lacks_is_named_with_the_sampler() -> None:
    with pytest.raises(SlalomError, match=r"^dab: unknown knob 'looks'; choose from weight"):
        cells(samplers="climb,dab,none", knobs={"looks": 64})


def test_two_tasks_of_one_name_are_refused(tmp_path: Path, soup: Any) -> None:
    (tmp_path / "other.toml").write_text((tmp_path / "soup.toml").read_text())
    with pytest.raises(SlalomError, match=r"two tasks are called 'soup'; give each a name of its own"):
        cells(tasks=[f"{tmp_path}/soup.toml", f"{tmp_path}/other.toml"])


@pytest.mark.parametrize(
    ("typed", "complaint"),
    [
        ({"tasks": ["exploration"], "samplers": "climb+told"}, "exploration tells the LM no wish; leave +told out"),
        ({"tasks": ["efficiency"], "samplers": "dab,climb+told"}, "efficiency tells the LM no wish; leave +told out"),
        ({"tasks": ["ablation"], "samplers": "dab+told"}, "ablation tells the LM no wish; leave +told out"),
        ({"tasks": ["ablation"], "samplers": "dab,dab:paper"}, "ablation is of one sampler; name dab or dab:paper"),
        (
            {"tasks": ["ablation"], "strengths": "0.5,1"},
            "ablation is a study and sets strengths itself; leave strengths",
        ),
        (
            {"tasks": ["prompted"], "strengths": "2"},
            "prompted is a study and sets strengths itself; leave strengths out",
        ),
        ({"tasks": ["prompted"], "prefix": True}, "prompted is a study and sets prefix itself; leave prefix out"),
        ({"tasks": ["ablation"], "knobs": {"tau": 1}}, "ablation is a study and sets knobs itself; leave knobs out"),
        ({"tasks": ["exploration"], "judges": "paper"}, "exploration judges no texts; leave judges out"),
        ({"tasks": ["efficiency"], "both": True}, "efficiency judges no texts; leave both out"),
    ],
)
def test_what_a_study_does_not_do_is_refused(typed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SlalomError) as error:
        checked(TypedRun(**typed))
    assert complaint in str(error.value)


def test_a_study_takes_what_it_does() -> None:
    assert any(cell.told for cell in cells(tasks=["prompted"], samplers="climb+told,dab"))
    assert {cell.preset for cell in cells(tasks=["ablation"], samplers="dab:paper,dab:paper")} == {"paper"}
    assert len(cells(tasks=["exploration"], strengths="1.0", samplers="dab,dab:paper")) == 2
