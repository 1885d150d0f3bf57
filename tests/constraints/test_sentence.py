"""Whole sentences and numbers of words."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.ending import ends_sentence as ends
from slalom.constraints import EndsWithSentence, Length
from slalom.errors import SlalomError
from tests.helpers import draft_of, one_hots


@pytest.mark.parametrize("text", [" it was good.", ' "it was good!"', " (was it?) ", " What?!", " he said 'no.\u2019"])
def test_a_sentence_ends_with_a_mark_and_perhaps_closing_quotes(text: str) -> None:
    assert ends(text)


@pytest.mark.parametrize(
    "text", ["", " it was good", " good. And", " good,", " a kind of...", " a kind of…", ' "', " 3.5"]
)
def test_anything_else_is_no_end(text: str) -> None:
    assert not ends(text)


def test_candidate_scores_are_the_entries_of_the_gradient_at_the_one_hots(llama: SteerableModel) -> None:
    constraint = EndsWithSentence()
    draft = draft_of(llama, [("we", " ate the soup")])
    relaxed = one_hots(draft)
    mixtures = relaxed.mixtures.float().requires_grad_()
    (gradient,) = torch.autograd.grad(constraint.relaxed_score(relaxed._replace(mixtures=mixtures)).sum(), mixtures)
    candidates = torch.arange(llama.vocabulary.size).expand(*draft.tokens.shape, -1)
    assert torch.allclose(constraint.candidate_scores(draft, candidates), gradient)
    assert gradient[0, -1, llama.vocabulary.pieces("!")].tolist() == [4.0]


def test_a_beginning_promises_nothing_and_a_text_of_the_full_length_its_score(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " ate the soup!")])
    n = draft.tokens.shape[1]
    half = llama.draft(draft.prompts, draft.tokens, torch.tensor([n - 1]), draft.log_probs)
    assert EndsWithSentence().prefix_score(draft).tolist() == [4.0]
    assert EndsWithSentence().prefix_score(half).tolist() == [0.0]


def test_steering_finds_a_draft_that_ends_with_a_sentence(lm: SteerableModel) -> None:
    out = lm.steer(["the food", "we liked"], EndsWithSentence(), length=8, samples=2)
    assert all(ends(text) for text in out.texts)
    assert all(row.satisfied for row in out.rows)


def test_length_counts_the_continuations_words(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("the food was", " good and warm")])
    scores = [Length(*bounds).score(draft).item() for bounds in ((3, 3), (1, 5), (5, 9), (0, 1), (9, 12))]
    assert scores == [4.0, 4.0, 2.0, 2.0, 0.0]
    assert [Length(*bounds).satisfied(draft).item() for bounds in ((2, 3), (4, 9))] == [True, False]


@pytest.mark.parametrize("bounds", [(5, 3), (-1, 3), (0, 0)])
def test_a_length_no_text_can_have_is_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(SlalomError, match=f"between {bounds[0]} and {bounds[1]} words"):
        Length(*bounds)
