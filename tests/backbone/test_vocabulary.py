"""Tokens become text, and every token knows its characters."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from tokenizers import Regex, decoders
from transformers import PreTrainedTokenizerFast

from slalom.api import SteerableModel
from slalom.backbone.vocabulary import Vocabulary
from slalom.types import Prompt
from tests.conftest import byte_fallback_tokenizer, byte_level_tokenizer, word_piece_tokenizer
from tests.helpers import count_decoded

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


def spans_by_definition(vocabulary: Vocabulary, prompt: Prompt, row: list[int]) -> list[tuple[int, int]]:
    """Every prefix decoded from its beginning: a token's characters are those that its prefix adds."""
    bounds = [0]
    for end in range(1, len(row) + 1):
        (text,) = vocabulary.continuations([prompt], [row[:end]])
        bounds.append(max(bounds[-1], len(text)))
    return [(start, end) if end > start else (max(0, start - 1), end) for start, end in itertools.pairwise(bounds)]


TOKENIZERS = [byte_level_tokenizer, byte_fallback_tokenizer, word_piece_tokenizer]


@pytest.fixture(params=TOKENIZERS, ids=lambda make: make.__name__)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    make: Callable[[], PreTrainedTokenizerFast] = request.param
    return vocabulary_of(make())


def vocabulary_of(tokenizer: PreTrainedTokenizerFast) -> Vocabulary:
    """With a few rows that no token uses."""
    return Vocabulary(tokenizer, torch.zeros(len(tokenizer) + 5, 2), (0,))


def test_spans_of_any_tokens_are_those_of_the_definition(vocabulary: Vocabulary) -> None:
    """Random ids: halves of characters, control tokens, unused rows."""
    draw = random.Random(0)
    control = [*vocabulary.tokenizer.all_special_ids, vocabulary.size - 1]
    for _ in range(300):
        some = [*range(vocabulary.size), *control * draw.choice([0, 100])]
        prompt = Prompt("", tuple(draw.choices(some, k=draw.randrange(7))))
        row = draw.choices(some, k=draw.randrange(60))
        assert in_blocks(vocabulary, prompt, row) == spans_by_definition(vocabulary, prompt, row)


def in_blocks(vocabulary: Vocabulary, prompt: Prompt, row: list[int]) -> list[tuple[int, int]]:
    """The spans, with an error if the row had to be decoded prefix by prefix after all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "continuations", None)
        (spans,) = vocabulary.spans([prompt], [row])
    return spans


SPLIT = ["😀" * 30, "x" + "😀" * 30, "x y" + "😀" * 30, " €" * 30, "日本語" * 20, "👩‍🚀 " * 9]


@pytest.mark.parametrize("text", [*TEXTS, *SPLIT, "   leading", ""])
def test_spans_of_texts_are_those_of_the_definition(vocabulary: Vocabulary, text: str) -> None:
    for before in ("", "the food", "the ", "😀"):
        prompt = Prompt(before, tuple(vocabulary.pieces(before)))
        row = vocabulary.pieces(text)
        assert in_blocks(vocabulary, prompt, row) == spans_by_definition(vocabulary, prompt, row)


def test_a_run_of_byte_tokens_is_decoded_as_a_whole() -> None:
    vocabulary = vocabulary_of(byte_fallback_tokenizer())
    run = [token for token in vocabulary.pieces("😀" * 12) if token in vocabulary.byte_tokens]
    assert len(run) == 48
    row = [*run, *vocabulary.pieces("the food"), *run[:-1], *vocabulary.pieces("the food was good and the soup warm")]
    prompt = Prompt("", ())
    assert in_blocks(vocabulary, prompt, row) == spans_by_definition(vocabulary, prompt, row)


def test_spans_of_several_rows_are_those_of_each(vocabulary: Vocabulary) -> None:
    prompts = [Prompt(text, tuple(vocabulary.pieces(text))) for text in ("the food", "a 😀", "")]
    rows = [vocabulary.pieces(text) for text in (" was good", "", " 😀 the rain")]
    expected = [spans_by_definition(vocabulary, *own) for own in zip(prompts, rows, strict=True)]
    assert vocabulary.spans(prompts, rows) == expected


def test_a_decoder_that_needs_the_whole_row_is_given_the_whole_row() -> None:
    tokenizer = byte_level_tokenizer()
    whole = decoders.Replace(Regex("^the.*$"), "short")
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), whole])
    vocabulary, prompt = vocabulary_of(tokenizer), Prompt("", ())
    row = vocabulary.pieces("the food was good and the soup was warm" * 5)
    assert vocabulary.spans([prompt], [row]) == [spans_by_definition(vocabulary, prompt, row)]


@pytest.mark.parametrize("text", ["the food was good ", "😀", "日本語"])
@pytest.mark.parametrize("make", [byte_level_tokenizer, word_piece_tokenizer], ids=lambda make: make.__name__)
def test_spans_decode_a_number_of_tokens_linear_in_the_rows_length(
    make: Callable[[], PreTrainedTokenizerFast], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocabulary = vocabulary_of(make())
    piece = vocabulary.pieces(text)
    decoded = count_decoded(vocabulary, monkeypatch)
    for n in (128, 256, 1024):
        decoded.clear()
        vocabulary.spans([Prompt("", tuple(piece))], [(piece * n)[:n]])
        assert sum(decoded) < 16 * n


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
