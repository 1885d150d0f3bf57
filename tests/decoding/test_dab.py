"""DAB does what the paper's algorithm box says, and its shortcuts change no token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Prompts, Rollout, rollout
from slalom.constraints.classifier import Classifier
from slalom.decoding import dab
from slalom.decoding.dab import DAB
from slalom.decoding.dab import PAPER as PUBLISHED
from slalom.decoding.randomness import Rng
from slalom.decoding.run import Report, decode
from slalom.api import SteerableModel
from slalom.types import Draft
from tests.constraints.test_contract import table_classifier
from tests.helpers import problem_of, unsteered
from tests.textbook import textbook_dab

PAPER = replace(PUBLISHED, norm="centred", top_k=20)
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


def test_the_first_draft_is_decoded_once_per_prompt_and_shared(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def counting(lm: LanguageModel, prompts: Prompts, rows: torch.Tensor, *rest: Any) -> Rollout:
        written.append(len(rows))
        return rollout(lm, prompts, rows, *rest)

    monkeypatch.setattr(dab, "rollout", counting)
    out = llama.steer(["the food", "we"], good, steps=1, samples=3, length=8)
    assert written == [2]
    assert out.texts == [text for text in unsteered(llama, ["the food", "we"]).draft.texts for _ in range(3)]


def test_the_latest_draft_is_pulled_towards_the_wish_and_away_from_its_opposite(
    lm: SteerableModel, good: Classifier
) -> None:
    prompts, bad = ["the food", "we liked"], Classifier(good.model, "bad", good.tokenizer)
    settings = {"samples": 4, "length": 8, "select": "latest", "knobs": {"top_k": 20}}  # no choice among drafts helps
    towards = sum(lm.steer(prompts, good, steps=8, **settings).scores)
    away = -sum(lm.steer(prompts, bad, steps=8, **settings).scores)  # with two labels, f of one is minus the other's
    assert towards > sum(lm.steer(prompts, good, steps=1, **settings).scores) > away


def test_no_single_move_is_made_twice_from_one_draft(llama: SteerableModel, good: Classifier) -> None:
    sampler = DAB(weight=0.0, top_k=10, looks=4)  # nothing ever lands, so the origin stays
    problem = problem_of(llama, ["the food was", "we"], good)
    rng = Rng.from_seeds([0, 1], llama.device)
    state = sampler.init(problem, rng.fold(1))
    for step in range(2, 32):
        state = sampler.step(problem, state, rng.fold(step))
    moved = state.origin.candidates != state.origin.draft.tokens[..., None]
    assert (state.tried & moved).sum((1, 2)).tolist() == [30, 30]


def test_gradients_are_taken_only_of_rows_that_moved_on(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    original = Classifier.candidate_scores

    def counting(self: Classifier, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        asked.append(len(draft.texts))
        return original(self, draft, candidates)

    monkeypatch.setattr(Classifier, "candidate_scores", counting)
    llama.steer(["the food was", "we"], good, steps=6, until=1.0, knobs={"weight": 0}, length=6)
    assert asked == [2]


def test_a_move_is_looked_at_once_and_the_texts_are_those_of_looking_anew(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    prefix_score = good.prefix_score

    def counted(draft: Draft) -> torch.Tensor:
        nonlocal looks
        looks += len(draft.texts)
        return prefix_score(draft)

    monkeypatch.setattr(good, "prefix_score", counted)
    problem, rng = problem_of(llama, ["the food", "we"], good), Rng.from_seeds([3, 4], torch.device("cpu"))
    written, counts = [], []
    for forget in (False, True):
        looks, sampler = 0, DAB()
        state = sampler.init(problem, rng.fold(1))
        texts = []
        for step in range(2, 12):
            if forget:
                state = state._replace(looked=torch.full_like(state.looked, torch.nan))
            state = sampler.step(problem, state, rng.fold(step))
            texts.append(state.latest.texts)
        written.append(texts)
        counts.append(looks)
    assert written[0] == written[1]
    assert counts[0] < counts[1]


def test_the_lm_runs_without_gradients_and_the_classifiers_parameters_get_none(
    llama: SteerableModel, good: Classifier
) -> None:
    recording: list[bool] = []
    hook = llama.model.register_forward_pre_hook(lambda *_: recording.append(torch.is_grad_enabled()))
    try:
        llama.steer("the food", good, steps=3, length=6)
    finally:
        hook.remove()
    assert recording
    assert not any(recording)
    assert all(parameter.requires_grad and parameter.grad is None for parameter in good.model.parameters())
