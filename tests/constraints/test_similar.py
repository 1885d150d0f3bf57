"""Likeness in meaning: a cosine, on a classifier's scale."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Similar
from slalom.errors import SlalomError
from tests.conftest import tiny_classifier
from tests.constraints.test_contract import similar
from tests.helpers import draft_of


def test_the_score_is_8_times_the_cosine_above_the_least(llama: SteerableModel) -> None:
    model, tokenizer = tiny_classifier()
    means = [
        model.bert(**tokenizer(text, return_tensors="pt")).last_hidden_state.mean(1)
        for text in ("the soup was warm", "the food was good")
    ]
    cosine = torch.nn.functional.cosine_similarity(*means).item()
    draft = draft_of(llama, [("the food", " was good")])
    constraint = Similar("the soup was warm", 0.3, model.bert, tokenizer)
    assert constraint.score(draft).item() == pytest.approx(8 * (cosine - 0.3), rel=1e-4)


def test_the_same_text_is_satisfied_whatever_the_least_and_does_not_depend_on_padding(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("the soup", " was warm"), ("an awful day in the city with", " the rain")])
    constraint = similar(llama, least=0.99)
    assert constraint.satisfied(draft).tolist() == [True, False]
    assert constraint.score(draft)[0].item() == pytest.approx(8 * 0.01, rel=1e-3)
    assert constraint.judge(draft).degree.tolist() == [1.0, 0.0]


def test_similar_can_read_the_continuation_alone(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("the soup", " was warm"), ("we", " was warm")])
    alone = similar(llama, "was warm", 0.0, "continuation").score(draft)
    assert alone.tolist() == pytest.approx([8.0, 8.0], rel=1e-4)


def test_steering_brings_the_text_nearer(llama: SteerableModel) -> None:
    constraint = similar(llama, "a lovely day by the river", 0.9)
    before = llama.steer(["we", "the food"], constraint, length=8, steps=1)
    after = llama.steer(["we", "the food"], constraint, length=8, steps=10)
    assert sum(after.scores) > sum(before.scores)


def test_nonsense_is_refused() -> None:
    model, tokenizer = tiny_classifier()
    with pytest.raises(SlalomError, match="is empty"):
        Similar(" ", model=model.bert, tokenizer=tokenizer)
    with pytest.raises(SlalomError, match="it must be a cosine, above -1 and below 1"):
        Similar("soup", 1.5, model.bert, tokenizer)
    with pytest.raises(SlalomError, match="needs its tokenizer"):
        Similar("soup", model=model.bert)


@pytest.mark.real
def test_the_embedded_encoder_tells_what_means_the_same(default_lm: SteerableModel) -> None:
    constraint = Similar("Heavy rain is expected all week.")
    texts = (" will be wet for days.", " app crashed on my phone.")
    alike, other = (constraint.score(draft_of(default_lm, [("The weather", text)])).item() for text in texts)
    assert alike > 0 > other
