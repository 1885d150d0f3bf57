"""Where a text ends: before a stop string, after its last whole sentence."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.ending import before_stop, ends_sentence, sentences, tokens_for, whole_sentences
from slalom.backbone.rollout import Limits, finished
from tests.helpers import draft_of, unsteered


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("One. Two", "One."),
        ('He said "no." Then he', 'He said "no."'),
        ("It costs 3.50 a day! And", "It costs 3.50 a day!"),
        ("Well... and", None),
        ("nothing here", None),
        ("All of it.", "All of it."),
    ],
)
def test_whole_sentences_end_with_a_mark_and_what_closes_after_it(text: str, whole: str | None) -> None:
    end = whole_sentences(text)
    assert (None if end is None else text[:end]) == whole
    assert whole is None or ends_sentence(whole)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("It rained. Mr. Smith and Mrs. Jones met Dr.", "It rained."),
        ("It rained. Some fruit, e.g. apples, i.e.", "It rained."),
        ("It rained. J. R. Smith met (A. Jones", "It rained."),
        ("It rained. In the U.S. Army", "It rained."),
        ("It rained. Soup, bread, etc. were served", "It rained."),
        ("It rained. At 5 p.m. they left St. Paul", "It rained."),
        ("It rained. Smith Inc. paid 3.50 for no. 7", "It rained."),
        ("We had soup, bread, etc. They left", "We had soup, bread, etc."),
        ('She said "so do I." Then', 'She said "so do I."'),
        ("It cost 3. Then", "It cost 3."),
        ("The answer is no. Then", "The answer is no."),
    ],
)
def test_the_dot_of_an_abbreviation_an_initial_or_a_number_ends_no_sentence(text: str, whole: str) -> None:
    end = whole_sentences(text)
    assert text[:end] == whole
    assert ends_sentence(whole)
    assert not ends_sentence(text)


def test_a_text_ends_before_the_first_of_its_stop_strings() -> None:
    assert before_stop("a user: b", ("user:", "b")) == 2
    assert before_stop("nothing", ("user:",)) is None


def test_the_tokens_for_a_beginning_write_at_least_that_and_not_a_token_more(llama: SteerableModel) -> None:
    prompt, text = llama.encode("we", 1), " liked the soup, they hated the rain"
    tokens = llama.vocabulary.pieces(text)
    for characters in range(len(text) + 1):
        count = tokens_for(llama.vocabulary, prompt, tokens, characters)
        (written,) = llama.vocabulary.continuations([prompt], [tokens[:count]])
        assert written.startswith(text[:characters])
        (shorter,) = llama.vocabulary.continuations([prompt], [tokens[: max(0, count - 1)]])
        assert not characters or len(shorter) < characters


def test_a_draft_is_cut_at_a_stop_string_wherever_in_a_token_it_begins(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " liked the soup, they hated the rain")])
    parts = (draft.prompts, draft.tokens, draft.lengths, draft.log_probs, draft.ended)
    cut = finished(llama, *parts, Limits(draft.tokens.shape[1], stops=("oup,",)))
    assert cut.texts == [" liked the s"]
    assert cut.lengths < draft.lengths
    assert (cut.log_probs[0, cut.lengths[0] :] == 0).all()
    assert finished(llama, *parts, Limits(draft.tokens.shape[1], stops=("absent",))).texts == draft.texts


def test_only_a_text_that_ran_into_the_limit_is_cut_to_whole_sentences(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " liked it! the soup")])
    parts = (draft.prompts, draft.tokens, draft.lengths, draft.log_probs, draft.ended)
    n = draft.tokens.shape[1]
    assert finished(llama, *parts, Limits(n, whole=True)).texts == [" liked it!"]
    longer = (draft.prompts, wider(draft.tokens), draft.lengths)
    ended = finished(llama, *longer, wider(draft.log_probs), torch.tensor([True]), Limits(n + 1, whole=True))
    assert ended.texts == [" liked it! the soup"]


def test_a_rollout_ends_where_its_limits_say(llama: SteerableModel) -> None:
    whole = unsteered(llama, ["the food was"], free=True).draft.texts[0]
    stop = whole[len(whole) // 2 :][:2]
    assert unsteered(llama, ["the food was"], free=True, stops=(stop,)).draft.texts == [whole[: whole.find(stop)]]


def wider(tensor: torch.Tensor) -> torch.Tensor:
    """One more column."""
    return torch.nn.functional.pad(tensor, (0, 1))


def test_a_text_is_taken_apart_into_its_whole_sentences() -> None:
    assert sentences("Mr. Lee came. He left! And then") == ["Mr. Lee came.", "He left!"]
    assert sentences("no end at all ") == ["no end at all"]
