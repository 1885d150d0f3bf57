"""Tokens become text, and every token knows its characters."""

from __future__ import annotations

import itertools

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.vocabulary import Vocabulary
from tests.conftest import byte_level_tokenizer

TEXTS = [" good soup, didn't it?", " naïve café", " 42 years 😀 and 👩‍🚀 too", " 日本語 text", "!", "un-split"]


@pytest.mark.parametrize("text", TEXTS)
def test_spans_cover_the_continuation_without_gaps(llama: SteerableModel, text: str) -> None:
    prompt = llama.encode("the food", 1)
    tokens = llama.vocabulary.pieces(text)
    (spans,) = llama.vocabulary.spans([prompt], [tokens])
    assert llama.vocabulary.continuations([prompt], [tokens]) == [text]
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for (_, end), (start, finish) in itertools.pairwise(spans):
        assert start in (end, end - 1)
        assert finish > start


def test_a_tokens_span_holds_the_tokens_own_text(llama: SteerableModel) -> None:
    text = " good soup, didn't it?"
    tokens = llama.vocabulary.pieces(text)
    (spans,) = llama.vocabulary.spans([llama.encode("the food", 1)], [tokens])
    for token, (start, end) in zip(tokens, spans, strict=True):
        assert text[start:end] == llama.vocabulary.texts[token]


def test_line_breaks_and_specials_are_found_by_the_tokenizers_own_ids(llama: SteerableModel) -> None:
    vocabulary = llama.vocabulary
    (newline,) = vocabulary.pieces("\n")
    assert vocabulary.newline[newline]
    assert vocabulary.special[llama.tokenizer.eos_token_id]
    assert vocabulary.banned_fixed[newline]
    assert not vocabulary.banned_free[newline]
    assert not vocabulary.banned_free[llama.tokenizer.eos_token_id]


def test_what_a_saved_tokenizer_does_by_itself_is_taken_back_before_it_is_shared() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(length=9)
    vocabulary = Vocabulary(tokenizer, torch.zeros(len(tokenizer), 2), (0,))
    assert (tokenizer.backend_tokenizer.truncation, tokenizer.backend_tokenizer.padding) == (None, None)
    assert len(vocabulary.pieces("the food was good and the soup was warm")) == 9
