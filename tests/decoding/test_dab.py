"""DAB does what the paper's algorithm box says, and its shortcuts change no token."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding.dab import DAB
from slalom.decoding.dab import PAPER as PUBLISHED
from slalom.decoding.scheduler import RowReport
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, problem_of, unsteered
from tests.textbook import Textbook, textbook_dab

PAPER = replace(PUBLISHED, norm="centred", top_k=20)


@pytest.mark.parametrize("sampler", [PAPER, DAB(top_k=20), DAB(scores="gradient", schedule="decreasing", top_k=30)])
def test_every_shortcut_gives_the_same_tokens_as_the_textbook(lm: SteerableModel, sampler: DAB) -> None:
    constraint = table_classifier(lm)
    drafts: list[list[int]] = []

    def note(rows: list[RowReport]) -> None:
        drafts.append(rows[0].seen.draft.tokens[0].tolist())

    decode(problem_of(lm, ["the food was"], constraint), sampler, [5], steps=5, callbacks=(note,))
    book = Textbook(lm, constraint, lm.encode("the food was", 8), 8)
    assert drafts == textbook_dab(book, sampler, seed=5, steps=5)
    assert len({tuple(draft) for draft in drafts}) > 1


def test_weight_zero_gives_exactly_the_lms_own_greedy_text(lm: SteerableModel, good: Classifier) -> None:
    prompts = ["the food", "a lovely day by the river"]
    out = lm.steer(prompts, good, sampler="dab", steps=4, samples=2, length=8, knobs={"weight": 0})
    assert out.texts == [text for text in unsteered(lm, prompts).draft.texts for _ in range(2)]


def test_the_latest_draft_is_pulled_towards_the_wish_and_away_from_its_opposite(
    lm: SteerableModel, good: Classifier
) -> None:
    prompts, bad = ["the food", "we liked"], Classifier(good.model, "bad", good.tokenizer)
    knobs = {"top_k": 20, "weight": 3.0, "tau": 0.05, "schedule": "constant"}
    settings = {"sampler": "dab", "samples": 6, "length": 8, "select": "latest", "knobs": knobs}  # no choice helps
    towards = sum(lm.steer(prompts, good, steps=8, **settings).scores)
    away = -sum(lm.steer(prompts, bad, steps=8, **settings).scores)  # with two labels, f of one is minus the other's
    assert towards > away


def test_the_papers_preset_is_the_paper_to_the_letter(good: Classifier) -> None:
    one, words = DAB.presets(good)["paper"], DAB.presets(Keywords(["soup"]))["paper"]
    assert (one.sampler.weight, one.sampler.tau, one.sampler.top_k, one.steps) == (1.05, 0.1, 250, 20)
    assert (words.sampler.weight, words.steps) == (1.4, 200)
    assert (one.sampler.norm, one.sampler.schedule, one.sampler.lm_weight) == ("log-probabilities", "decreasing", 0.0)
    assert (one.choice, one.stop) == ("score", None)


def test_no_knob_switches_to_another_algorithm() -> None:
    assert {knob.name for knob in fields(DAB)} == {
        "weight",
        "schedule",
        "tau",
        "top_k",
        "norm",
        "scores",
        "lm_weight",
    }


@pytest.mark.parametrize("sampler", ["dab", "climb"])
def test_the_lm_runs_without_gradients_and_the_classifiers_parameters_get_none(
    llama: SteerableModel, good: Classifier, sampler: str
) -> None:
    recording: list[bool] = []
    hook = llama.model.register_forward_pre_hook(lambda *_: recording.append(torch.is_grad_enabled()))
    try:
        llama.steer("the food", good, sampler=sampler, steps=3, length=6)
    finally:
        hook.remove()
    assert recording
    assert not any(recording)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in good.model.parameters())
