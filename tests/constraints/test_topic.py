"""Soft keywords: a topic's words and what lies close to them in the LM's table."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Topic
from slalom.constraints.topic import TOPICS
from slalom.errors import SlalomError
from tests.helpers import draft_of, one_hots


def token_of(lm: SteerableModel, text: str) -> int:
    (token,) = lm.vocabulary.pieces(text)
    return token


def test_a_topic_is_one_of_the_papers_by_name_or_any_words() -> None:
    assert Topic("Space").keywords.words == list(TOPICS["space"])
    assert Topic("boat, river").keywords.words == ["boat", "river"]
    assert Topic(["boat", "river"]).keywords.words == ["boat", "river"]
    assert Topic("space").name == "topic:space"
    assert len(TOPICS) == 7


def test_a_word_that_is_one_token_is_as_near_as_can_be_and_punctuation_is_not(llama: SteerableModel) -> None:
    nearness = Topic(["the"]).nearness(llama.vocabulary)
    assert nearness[token_of(llama, " the")] == 1
    assert nearness[token_of(llama, ",")] == 0
    assert ((nearness >= 0) & (nearness <= 1)).all()


def test_words_of_several_tokens_have_no_neighbours_but_count_when_they_are_written(llama: SteerableModel) -> None:
    constraint = Topic(["gum"])
    draft = draft_of(llama, [("we ate", " gum")])
    assert (constraint.nearness(llama.vocabulary) == 0).all()
    assert constraint.score(draft).item() == pytest.approx(4.0)
    assert constraint.satisfied(draft).item()


def test_candidate_scores_are_the_entries_of_the_gradient_at_the_one_hots(llama: SteerableModel) -> None:
    constraint = Topic(["soup", "the", "gum"])
    for text in (" cold rain", " the river", " ate gu"):
        draft = draft_of(llama, [("we", text)])
        relaxed = one_hots(draft)
        mixtures = relaxed.mixtures.float().requires_grad_()
        score = constraint.relaxed_score(relaxed._replace(mixtures=mixtures))
        (gradient,) = torch.autograd.grad(score.sum(), mixtures)
        candidates = torch.arange(llama.vocabulary.size).expand(*draft.tokens.shape, -1)
        assert torch.allclose(constraint.candidate_scores(draft, candidates), gradient, atol=1e-5)


def test_the_score_is_full_where_the_topic_is_reached(llama: SteerableModel) -> None:
    constraint = Topic(["soup", "the"])
    for text in (" ate the", " cold rain", " SOUP", " rainy"):
        draft = draft_of(llama, [("we", text)])
        assert not constraint.satisfied(draft).item() or constraint.score(draft).item() == pytest.approx(4.0)
    assert constraint.satisfied(draft_of(llama, [("we", " ate the")])).item()


def test_the_words_and_all_that_is_near_are_worth_proposing(llama: SteerableModel) -> None:
    constraint = Topic(["the"])
    wanted = constraint.wanted(llama.vocabulary)
    assert token_of(llama, " the") in wanted
    assert len(wanted) == len(set(wanted))
    assert not llama.vocabulary.never_candidates[wanted].any()


def test_gradients_that_samplers_follow_lead_to_one_spelling_of_a_word(llama: SteerableModel) -> None:
    topic = Topic(["soup", "sunrise"])
    usual = topic.one_spelling()
    spellings = usual.keywords.spellings(llama.vocabulary)
    texts = [llama.vocabulary.decode([list(spelling.tokens)])[0] for spelling in spellings]
    assert texts == [" soup", " sunrise"]
    assert len(topic.keywords.spellings(llama.vocabulary)) > 2
    assert usual is topic.one_spelling()
    assert usual.one_spelling() is usual
    draft = draft_of(llama, [("we", " liked the Soup")])
    assert usual.score(draft).tolist() == topic.score(draft).tolist()  # whatever spelling stands there counts


def test_steering_reaches_a_topic(lm: SteerableModel) -> None:
    out = lm.steer(["a day in", "we liked"], Topic(["soup", "food"]), length=8, samples=2)
    assert all(row.satisfied for row in out.rows)


def test_a_topic_that_cannot_be_written_is_refused(llama: SteerableModel) -> None:
    with pytest.raises(SlalomError, match="no topic given; give words, or choose from computer, legal"):
        Topic(" , ")
    with pytest.raises(SlalomError, match="none of the words extraordinarily can be written"):
        Topic("extraordinarily").check(llama.vocabulary, 2)
    Topic("extraordinarily, the").check(llama.vocabulary, 2)


@pytest.mark.real
def test_in_a_real_table_inflections_and_kin_are_near_and_frequent_words_are_not(default_lm: SteerableModel) -> None:
    nearness = Topic(["server", "mass", "infantry"]).nearness(default_lm.vocabulary)
    assert all(nearness[token_of(default_lm, word)] == 1 for word in (" servers", " masses", " cavalry"))
    assert all(nearness[token_of(default_lm, word)] < 0.05 for word in (" the", " in", " said", " food"))
