"""Passes are counted for whoever asks, every row at every position, and for nobody else."""

from __future__ import annotations

from slalom.api import SteerableModel
from slalom.backbone.passes import counted_passes
from slalom.constraints.classifier import Classifier
from tests.helpers import unsteered


def test_a_rollout_costs_a_pass_for_every_row_and_position(llama: SteerableModel) -> None:
    with counted_passes() as outer:
        unsteered(llama, ["we", "the food"], 8)
        with counted_passes() as inner:
            unsteered(llama, ["we"], 5)
    assert (outer.count, inner.count) == (16, 5)


def test_every_draft_and_every_gradient_samplers_reading_counts(llama: SteerableModel, good: Classifier) -> None:
    counts = {}
    for sampler, steps in (("none", 1), ("dab", 3), ("bolt", 3), ("mucola", 2)):
        with counted_passes() as passes:
            llama.steer("we", good, sampler=sampler, steps=steps, length=8, tell=False)
        counts[sampler] = passes.count
    assert counts["none"] == 8
    assert counts["dab"] == 3 * 8
    assert counts["bolt"] == 8 + 2 * 7  # the first logits of a draft are the prompt's
    assert counts["mucola"] > 2 * 8
