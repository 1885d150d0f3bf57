"""A sampler, a preset, a wish and an LM to the settings of a run."""

from __future__ import annotations

import math

from slalom.constraints import Keywords
from slalom.decoding.presets import READING, preset_for

WISH = Keywords(["soup"])
LM = next(iter(READING))


def test_the_fluency_guide_is_asked_only_about_texts_of_an_lm_it_knows() -> None:
    known, other = (preset_for("default", WISH, name) for name in (LM, "some/model"))
    assert known.objective.reading == READING[LM] > 0 == other.objective.reading
    assert known.stop is not None
    assert known.stop.reading == 0
    assert other.stop is not None
    assert math.isinf(other.stop.reading)


def test_the_fluency_guide_can_be_turned_on_and_off_by_hand() -> None:
    assert preset_for("default", WISH, LM, knobs={"reading": 0}).objective.reading == 0
    assert preset_for("default", WISH, "some/model", knobs={"reading": "0.5"}).objective.reading == 0.5


def test_a_sampler_that_chooses_by_score_does_not_ask_the_fluency_guide() -> None:
    assert preset_for("paper", WISH, LM, sampler="dab").objective.reading == 0


def test_a_degree_given_by_hand_stops_at_once_whatever_the_fluency_guide_says() -> None:
    stop = preset_for("default", WISH, LM, until=0.9).stop
    assert stop is not None
    assert math.isinf(stop.reading)
