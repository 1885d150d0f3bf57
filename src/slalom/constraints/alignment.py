"""Two tokenizers, one text: LM tokens as a classifier's embeddings, and its gradients as LM positions'."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slalom.backbone.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]  # (start, end) characters
PART = 2048  # tokens looked up at a time


def candidate_table(
    vocabulary: Vocabulary, tokenizer: PreTrainedTokenizerBase, embeddings: torch.Tensor
) -> torch.Tensor:
    """Every LM token as the mean of the classifier's embeddings of its own pieces: [V, d].

    A token that starts with a space is read as a word's beginning, any other as a word's continuation.
    """
    pieces = pieces_of(vocabulary.texts, tokenizer)
    owner = torch.tensor([token for token, own in enumerate(pieces) for _ in own], device=embeddings.device)
    piece = torch.tensor([one for own in pieces for one in own], device=embeddings.device)
    table = torch.zeros(len(pieces), embeddings.shape[1], device=embeddings.device)
    for some, whose in zip(piece.split(PART), owner.split(PART), strict=True):
        table.index_add_(0, whose, embeddings[some].float())
    counts = torch.bincount(owner, minlength=len(pieces)).clamp(min=1)
    return table.div_(counts[:, None])


def pieces_of(texts: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The classifier's pieces of each LM token's text."""
    asked = [text or " " for text in texts]
    # Not by calling the tokenizer, which makes a dictionary of every text's marks: there is a text for every token.
    found = tokenizer.backend_tokenizer.encode_batch_fast(asked, add_special_tokens=False)
    ids = [one.ids for one in found]
    known = tokenizer.get_vocab()
    names = {number: name for name, number in known.items()}
    for own, text in zip(ids, texts, strict=True):
        if own and text[:1].isalnum():  # no space, not punctuation: goes on with the word before it
            own[0] = _continuing(names[own[0]], known, own[0])
    return ids


def _continuing(piece: str, known: dict[str, int], default: int) -> int:
    """The piece that spells the same inside a word, by the marks of WordPiece, SentencePiece or byte-level BPE."""
    bare = piece.lstrip("▁Ġ")
    return known.get(f"##{bare}", known.get(bare, default))


def collect(gradients: torch.Tensor, pieces: list[list[Span]], tokens: list[list[Span]], length: int) -> torch.Tensor:
    """Gradients at the classifier's pieces [B, m, d] to gradients at LM positions [B, n, d].

    A position takes of each piece's gradient the share of the piece's characters that are its own.
    """
    shares = torch.zeros(len(tokens), length, gradients.shape[1])
    for row, (own_pieces, own_tokens) in enumerate(zip(pieces, tokens, strict=True)):
        first = 0
        for i, (start, end) in enumerate(own_tokens):
            while first < len(own_pieces) and own_pieces[first][1] <= start:
                first += 1
            for p in range(first, len(own_pieces)):
                begin, finish = own_pieces[p]
                if begin >= end:
                    break
                if finish > begin:
                    shares[row, i, p] = (min(end, finish) - max(start, begin)) / (finish - begin)
    shares /= shares.sum(1, keepdim=True).clamp(min=1)  # a character several tokens write together counts once
    return shares.to(gradients.device) @ gradients
