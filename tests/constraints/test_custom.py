"""Any Python function: asked once about each whole draft, never about a beginning."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Custom, Keywords
from slalom.errors import SlalomError
from tests.helpers import draft_of


def test_the_score_is_the_functions_own_number(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("the food was", " good"), ("we ate", " soup")])
    constraint = Custom(lambda prompt, text: len(prompt) + text.count("o"), "o", satisfied_at=13)
    assert constraint.score(draft).tolist() == [14.0, 7.0]
    assert constraint.satisfied(draft).tolist() == [True, False]


def test_a_bool_will_do_and_the_functions_name_is_the_constraints(llama: SteerableModel) -> None:
    def is_warm(prompt: str, text: str) -> bool:
        return "warm" in text

    constraint = Custom(is_warm)
    assert constraint.name == "custom:is_warm"
    assert constraint.judge(draft_of(llama, [("the soup", " was warm")])).satisfied.item()


def test_a_judgement_asks_the_function_once_a_row_and_an_outlook_never(llama: SteerableModel) -> None:
    asked: list[str] = []

    def note(prompt: str, text: str) -> bool:
        asked.append(text)
        return True

    draft = draft_of(llama, [("we", " ate"), ("they", " ate")])
    Custom(note).judge(draft)
    assert asked == [" ate", " ate"]
    assert Custom(note).prefix_score(draft).tolist() == [0.0, 0.0]
    assert len(asked) == 2


def test_an_answer_that_is_no_number_is_refused(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " ate")])
    for answer in ("much", None, float("nan")):
        with pytest.raises(SlalomError, match="must give a number or a bool"):
            Custom(lambda prompt, text, answer=answer: answer, "odd").score(draft)  # type: ignore[misc]


def test_among_the_drafts_seen_the_best_is_one_the_function_likes(llama: SteerableModel) -> None:
    first = llama.steer("the food", Keywords(["soup"]), length=6, steps=1).texts[0]
    other = Custom(lambda prompt, text: 4.0 * (text != first), "other", satisfied_at=4)
    out = llama.steer("the food", Keywords(["soup"]) + other, length=6, steps=6)
    assert out.rows[0].constraints[1].satisfied
    assert out.texts[0] != first


def test_without_a_gradient_candidates_are_worth_nothing(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " ate the soup")])
    scores = Custom(lambda prompt, text: 1.0).candidate_scores(draft, draft.tokens[..., None])
    assert torch.equal(scores, torch.zeros_like(scores))
