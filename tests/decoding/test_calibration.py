"""Calibration: the best control within the limit of fluency, remembered for later runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.api import SteerableModel
from slalom.constraints.classifier import Classifier
from slalom.decoding.calibration import Calibration, Trial, best_trial, calibrate, remember
from slalom.decoding.dab import DAB
from slalom.decoding.presets import preset_for
from slalom.decoding.recorded import recorded_weight
from slalom.errors import SlalomError


def test_the_best_control_within_the_limit_is_chosen_and_the_smaller_weight_of_two_alike() -> None:
    tried = [Trial(1, 0.5, 1.1), Trial(2, 0.955, 1.4), Trial(3, 0.96, 1.6), Trial(4, 0.999, 2.5)]
    assert best_trial(tried, 1.7).weight == 2
    assert best_trial(tried, 1.2).weight == 1
    assert best_trial(tried, 1.0).weight == 1
    assert best_trial(tried, 3.0).weight == 4


def test_a_calibrated_weight_is_used_by_later_runs(
    llama: SteerableModel, good: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    lines: list[str] = []
    found = calibrate(llama, good, prompts=2, most=1.7, say=lines.append)
    assert len(lines) == len(found.tried)
    remember("some/model", Calibration(2.25, found.tried))
    assert recorded_weight("some/model") == 2.25
    assert preset_for("default", good, "some/model", strength=2.0, sampler="dab").sampler.weight == 4.5
    assert preset_for("default", good, "other", sampler="dab").sampler.weight != 4.5


def test_a_calibrated_weight_reaches_every_preset_of_ours_and_leaves_the_papers(
    good: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    remember("some/model", Calibration(2.25, []))
    weights = {name: preset_for(name, good, "some/model", sampler="dab").sampler.weight for name in DAB.presets(good)}
    assert weights == {"default": 2.25, "paper": 1.05}
    assert preset_for("default", good, "some/model", knobs={"weight": 1.5}, sampler="dab").sampler.weight == 1.5


def test_a_broken_calibration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    path = remember("m", Calibration(1.0, []))
    path.write_text("not json")
    with pytest.raises(SlalomError, match="run slalom calibrate again"):
        recorded_weight("m")
