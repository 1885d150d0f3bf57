"""Two tokenizers, one text: pieces and gradients find their LM tokens, whatever the script."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints.alignment import candidate_table, collect, pieces_of
from tests.conftest import byte_level_tokenizer, word_piece_tokenizer


def test_a_position_collects_each_piece_in_proportion_to_its_characters() -> None:
    gradients = torch.tensor([[[1.0], [10.0], [100.0]]])
    pieces = [[(0, 0), (0, 4), (4, 6)]]  # a special token has no characters
    tokens = [[(0, 2), (2, 6)]]
    assert collect(gradients, pieces, tokens, 3)[0, :, 0].tolist() == [5.0, 105.0, 0.0]


def test_tokens_that_share_a_piece_share_its_gradient() -> None:
    gradients = torch.tensor([[[6.0]]])
    assert collect(gradients, [[(0, 3)]], [[(0, 1), (1, 2), (2, 3)]], 3)[0, :, 0].tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    "text", [" the naïve café", " 😀 soup 👩‍🚀", " didn't it's", " 42 years, 3.14!", " kayakers' sunrise"]
)
def test_every_piece_of_the_text_is_collected_whole(llama: SteerableModel, text: str) -> None:
    """The shares of one piece over all LM tokens add up to one, so that no gradient is lost or counted twice."""
    tokenizer = word_piece_tokenizer()
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    tokens = llama.vocabulary.pieces(text)
    (spans,) = llama.vocabulary.spans([llama.encode("we", 1)], [tokens])
    own = torch.eye(len(offsets))[None]
    shares = collect(own, [offsets], [spans], len(tokens))[0].sum(0)
    for share, (start, end) in zip(shares.tolist(), offsets, strict=True):
        assert share == pytest.approx(1.0 if end > start else 0.0)


def test_a_words_beginning_and_its_continuation_are_different_pieces() -> None:
    tokenizer = word_piece_tokenizer()
    known = tokenizer.get_vocab()
    both = next(name for name in known if f"##{name}" in known and name.isalpha())
    beginning, continuing, mark = pieces_of([f" {both}", both, "!"], tokenizer)
    assert beginning == [known[both]]
    assert continuing == [known[f"##{both}"]]
    assert mark == tokenizer("!", add_special_tokens=False)["input_ids"]


def test_a_tokens_embedding_is_the_mean_of_its_pieces(llama: SteerableModel) -> None:
    tokenizer = word_piece_tokenizer()
    embeddings = torch.randn(len(tokenizer), 4, generator=torch.Generator().manual_seed(0))
    table = candidate_table(llama.vocabulary, tokenizer, embeddings)
    pieces = pieces_of(llama.vocabulary.texts, tokenizer)
    for token in range(0, llama.vocabulary.size, 17):
        expected = embeddings[pieces[token]].mean(0) if pieces[token] else torch.zeros(4)
        assert torch.allclose(table[token], expected, atol=1e-6)


def test_a_byte_level_classifier_keeps_its_own_marks() -> None:
    tokenizer = byte_level_tokenizer()
    (spaced,), (bare,) = pieces_of([" the", "the"], tokenizer)[0:2]
    assert tokenizer.decode([spaced]) == " the"
    assert tokenizer.decode([bare]) == "the"
