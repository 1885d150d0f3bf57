"""DAB does what the paper's algorithm box says, and its shortcuts change no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slalom.constraints.classifier import Classifier
from slalom.decoding.dab import DAB
from slalom.decoding.presets import PRESETS
from slalom.decoding.run import Report, decode
from slalom.decoding.steer import SteerableModel
from tests.constraints.test_contract import table_classifier
from tests.helpers import problem_of, unsteered
from tests.textbook import textbook_dab

PAPER = replace(PRESETS["paper"].sampler, norm="centred", top_k=20)
OURS = DAB(top_k=20)


@pytest.mark.parametrize(
    "sampler",
    [
        PAPER,
        OURS,
        DAB(looks=1, top_k=20),
        DAB(moves=3, scores="difference", climb=False, hold="moved", schedule="decreasing", top_k=30),
    ],
)
def test_every_shortcut_gives_the_same_tokens_as_the_textbook(lm: SteerableModel, sampler: DAB) -> None:
    constraint = table_classifier(lm)
    drafts: list[list[int]] = []

    def note(report: Report) -> None:
        drafts.append(report.seen.draft.tokens[0].tolist())

    decode(problem_of(lm, ["the food was"], constraint), sampler, [5], steps=5, callbacks=(note,))
    assert drafts == textbook_dab(lm, constraint, "the food was", sampler, seed=5, steps=5, length=8)
    assert len({tuple(draft) for draft in drafts}) > 1


def test_weight_zero_gives_exactly_the_lms_own_greedy_text(lm: SteerableModel, good: Classifier) -> None:
    prompts = ["the food", "a lovely day by the river"]
    out = lm.steer(prompts, good, steps=4, samples=2, length=8, knobs={"weight": 0})
    assert out.texts == [text for text in unsteered(lm, prompts).draft.texts for _ in range(2)]


def test_the_first_draft_is_decoded_once_per_prompt_and_shared(llama: SteerableModel, good: Classifier) -> None:
    out = llama.steer(["the food", "we"], good, steps=1, samples=3, length=8)
    assert len(set(out.texts)) == 2
    assert [row.text for row in out.rows] == [row.unsteered for row in out.rows]


def test_steering_raises_the_score(lm: SteerableModel, good: Classifier) -> None:
    prompts, knobs = ["the food", "we liked"], {"norm": "centred", "top_k": 20}
    out = lm.steer(prompts, good, steps=8, samples=2, length=8, preset="paper", knobs=knobs)
    before = lm.steer(prompts, good, steps=1, samples=2, length=8)
    assert all(after >= first for after, first in zip(out.scores, before.scores, strict=True))
    assert sum(out.scores) > sum(before.scores)


def test_no_parameter_ever_gets_a_gradient(llama: SteerableModel, good: Classifier) -> None:
    llama.steer("the food", good, steps=3, length=6)
    assert all(parameter.grad is None for parameter in llama.model.parameters())
    assert all(parameter.grad is None for parameter in good.model.parameters())
