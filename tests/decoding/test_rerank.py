"""Rerank chooses every token by FUDGE's formula, with the constraint's own reading of the text so far."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.constraints.avoid import Avoid
from slalom.constraints.classifier import Classifier
from slalom.decoding.drawing import Drawing
from slalom.decoding.randomness import Rng
from slalom.decoding.rerank import Rerank
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, draft_of, limited, problem_of, unsteered
from tests.textbook import Textbook, textbook_rerank


@pytest.mark.parametrize("measure", ["log-probability", "score"])
@pytest.mark.parametrize("drawn", [False, True])
def test_every_token_is_the_one_of_the_textbooks_formula(lm: SteerableModel, measure: str, drawn: bool) -> None:
    constraint, sampler = table_classifier(lm), Rerank(weight=30.0, top_k=12, measure=measure)
    problem = problem_of(lm, ["the food was"], constraint, drawn=[5] if drawn else None)
    drawing = Drawing(torch.ones(1), torch.ones(1), Rng.from_seeds([5], lm.device).fold(0)) if drawn else None
    book = Textbook(lm, constraint, lm.encode("the food was", 8), 8)
    (end,) = decode(problem, sampler, [5], steps=1)
    expected = textbook_rerank(book, sampler, drawing)
    assert end.best.draft.tokens[0].tolist() == expected
    assert expected != textbook_rerank(book, Rerank(weight=0.0, top_k=12), drawing)


def test_weight_zero_gives_exactly_the_lms_own_greedy_text(lm: SteerableModel, good: Classifier) -> None:
    prompts = ["the food", "a lovely day by the river"]
    out = lm.steer(prompts, good, sampler="rerank", samples=2, length=8, knobs={"weight": 0})
    assert out.texts == [text for text in unsteered(lm, prompts).draft.texts for _ in range(2)]


def test_a_higher_weight_pulls_harder(llama: SteerableModel, good: Classifier) -> None:
    weak, strong = (
        llama.steer(["the food", "we"], good, sampler="rerank", length=8, knobs={"weight": weight, "measure": "score"})
        for weight in (0.0, 20.0)
    )
    assert sum(strong.scores) > sum(weak.scores)
    assert [row.steps for row in strong.rows] == [1, 1]


def test_rows_of_different_wishes_and_lengths_share_a_batch(llama: SteerableModel, good: Classifier) -> None:
    one, other = (
        problem_of(llama, ["we"], wish, length) for wish, length in ((good, 6), (good + Keywords(["soup"]), 9))
    )
    alone = [decode(problem, Rerank(), [0], steps=1)[0].best.draft.texts for problem in (one, other)]
    ends = decode(one.join(other), Rerank(), [0, 0], steps=1)
    assert [end.best.draft.texts for end in ends] == alone


def test_what_is_forbidden_is_not_written_even_if_all_favourites_are(llama: SteerableModel) -> None:
    first = unsteered(llama, ["we"], 1).draft.texts[0]
    (end,) = decode(problem_of(llama, ["we"], Avoid([first.strip()])), Rerank(top_k=1), [0], steps=1)
    assert first.strip() not in end.best.draft.texts[0].split()


def test_a_text_that_has_ended_is_read_no_more(llama: SteerableModel, good: Classifier) -> None:
    problem = limited(problem_of(llama, ["we"], good, 4), free=True)
    eos, token = llama.vocabulary.eos[0], llama.vocabulary.pieces(" the")[0]
    before = torch.tensor([[token, eos]])
    assert Rerank()._said(problem, before, torch.tensor([[token, eos]])).tolist() == [[0.0, 0.0]]
    ending = Rerank(measure="score")._said(problem, before[:, :1], torch.tensor([[eos]]))
    assert ending.item() == pytest.approx(good.score(draft_of(llama, [("we", " the")])).item(), abs=1e-5)
