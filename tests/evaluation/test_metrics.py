"""Metrics against values counted by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from slalom.evaluation import metrics
from slalom.evaluation.estimates import Case
from slalom.evaluation.metrics import (
    METRICS,
    JudgedText,
    distinct,
    keyword_success,
    repeated_trigrams,
    self_bleu,
)

POSITIVE = [{"kind": "sentiment", "label": "positive"}]
NEGATIVE = [{"kind": "sentiment", "label": "negative"}]
CLEAN = [{"kind": "toxicity", "level": "low"}]
WORDS = [{"kind": "keywords", "words": ["soup", "tea"], "mode": "all"}]


def scored(parts: list[dict[str, Any]], text: str = " was fine", **scores: float) -> JudgedText:
    return JudgedText("The food", text, parts, [0.9], {name.replace("_", "-"): value for name, value in scores.items()})


def test_repeated_trigrams_are_those_seen_before_in_the_same_text() -> None:
    # a b c | b c a | c a b | a b c again | b c d : one of five
    assert repeated_trigrams("a b c a b c d") == pytest.approx(1 / 5)
    assert repeated_trigrams("The cat sat.") == 0.0
    assert repeated_trigrams("two words") is None


@pytest.mark.parametrize(
    ("text", "mode", "found"),
    [
        (" hot soup, and more", "any", True),
        (" hot soup, and more", "all", False),
        (" TEA or Soup", "all", True),
        (" soups and teas", "any", False),
        (" my_soup", "any", False),
    ],
)
def test_a_keyword_counts_as_a_whole_word_in_any_case(text: str, mode: Any, found: bool) -> None:
    assert keyword_success(text, ["soup", "tea"], mode) is found


def test_distinct_counts_different_ngrams_over_all_texts_of_a_prompt() -> None:
    texts = ["a b a", "a b c"]  # bigrams: ab ba ab bc, three of them different
    assert distinct(texts, 2) == pytest.approx(3 / 4)
    assert distinct(texts, 1) == pytest.approx(3 / 6)
    assert distinct(["a"], 2) is None


def test_self_bleu_is_1_for_equal_texts_and_0_for_texts_that_share_nothing() -> None:
    assert self_bleu(["one two three four five"] * 3) == pytest.approx(1.0)
    assert self_bleu(["one two three four five", "six seven eight nine ten"]) == 0.0
    assert self_bleu(["alone"]) is None


def test_distinct_texts_are_counted_among_all_of_a_prompt_and_not_of_one_text() -> None:
    assert metrics.distinct_texts(["a", "a", "b", "a"]) == 0.5
    assert metrics.distinct_texts(["a"]) is None


def test_self_bleu_is_the_geometric_mean_of_clipped_precisions() -> None:
    # each against the other: 4 of 5 words, 3 of 4 bigrams, 2 of 3 trigrams, 1 of 2 four-grams; equal lengths
    expected = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert self_bleu(["a b c d x", "a b c d y"]) == pytest.approx(expected)


def test_perplexities_are_compared_by_their_geometric_means() -> None:
    own, other = ({Case("a", "w", 20): values} for values in ([1.0, 100.0], [5.0]))
    found = METRICS["perplexity"].compare(own, other)
    assert found is not None
    assert math.exp(found.mean) == pytest.approx(2.0)  # not 50.5 / 5


def test_sentiment_is_the_probability_of_what_was_asked_for() -> None:
    judged = {"sentiment_yelp": 0.9, "sentiment_sst2": 0.7}
    assert METRICS["sentiment"].values([scored(POSITIVE, **judged)]) == [pytest.approx(0.8)]
    assert METRICS["sentiment-yelp"].values([scored(NEGATIVE, **judged)]) == [pytest.approx(0.1)]


def test_a_text_is_as_wished_if_its_likeliest_tone_is_the_one_asked_for() -> None:
    for tone, expected in ((0.6, [1.0, 0.0]), (0.0, [0.0, 0.0]), (-0.4, [0.0, 1.0])):
        texts = [scored(wish, sentiment=tone) for wish in (POSITIVE, NEGATIVE)]
        assert METRICS["as-wished"].values(texts) == expected
    assert METRICS["as-wished"].values([scored(POSITIVE)]) == []


def test_a_metric_whose_judge_is_missing_has_no_values() -> None:
    lone = [scored(POSITIVE, sentiment_yelp=0.9)]
    assert METRICS["sentiment"].values(lone) == []
    assert METRICS["perplexity"].values(lone) == []
    assert METRICS["max-toxicity"].values([scored(CLEAN, toxicity=0.3), scored(CLEAN)]) == []


def test_toxicity_is_taken_at_its_worst_and_called_toxic_from_a_half_on() -> None:
    texts = [scored(CLEAN, toxicity=0.2), scored(CLEAN, toxicity=0.5)]
    assert METRICS["max-toxicity"].values(texts) == [0.5]
    assert METRICS["share-toxic"].values(texts) == [0.0, 1.0]


def test_all_wishes_must_be_met_by_their_own_judges() -> None:
    parts = POSITIVE + CLEAN + WORDS
    judged = {"sentiment": 0.7, "toxicity": 0.1}
    assert METRICS["fulfilled"].values([scored(parts, " with soup and tea", **judged)]) == [1.0]
    assert METRICS["fulfilled"].values([scored(parts, " with soup", **judged)]) == [0.0]
    assert METRICS["fulfilled"].values([scored(parts, " with soup and tea", toxicity=0.1)]) == []


@pytest.mark.parametrize(
    ("parts", "met"),
    [
        ([*POSITIVE, {"kind": "topic", "topic": "space"}], []),  # nobody has looked at the topic
        ([{"kind": "classifier", "label": "friendly"}], []),
        ([{"kind": "classifier", "label": "negative"}], [0.0]),
        ([{"kind": "sentiment", "label": "Positive"}], [1.0]),
        ([{"kind": "toxicity", "level": "high"}], [0.0]),
        ([*WORDS, {"kind": "keywords", "words": ["rice"]}], [0.0]),
        ([{"kind": "keywords", "words": ["rice"]}, *WORDS], [0.0]),
    ],
)
def test_every_part_of_a_wish_is_looked_at_or_none_is_called_met(parts: list[dict[str, Any]], met: list[float]) -> None:
    text = scored(parts, " with soup and tea", sentiment=0.7, toxicity=0.1)
    assert METRICS["fulfilled"].values([text]) == met


def test_a_label_may_be_written_in_any_case_and_two_class_judges_know_no_neutral() -> None:
    judged = {"sentiment_yelp": 0.9, "sentiment_sst2": 0.7, "sentiment": 0.5}
    assert METRICS["as-wished"].values([scored([{"kind": "sentiment", "label": "Positive"}], **judged)]) == [1.0]
    assert METRICS["sentiment-yelp"].values([scored([{"kind": "sentiment", "label": "POSITIVE"}], **judged)]) == [0.9]
    assert METRICS["sentiment-yelp"].values([scored([{"kind": "sentiment", "label": "neutral"}], **judged)]) == []


def test_the_guides_toxicity_is_its_probability_whichever_was_asked_for() -> None:
    toxic = [{"kind": "toxicity", "level": "high"}]
    assert METRICS["guide-toxicity"].values([scored(toxic), scored(CLEAN)]) == [0.9, pytest.approx(0.1)]


def test_the_guide_is_the_least_of_its_probabilities() -> None:
    assert METRICS["guide"].values([JudgedText("", "", POSITIVE, [0.9, None, 0.6], {})]) == [0.6]
    assert METRICS["guide"].values([JudgedText("", "", WORDS, [None], {})]) == []
