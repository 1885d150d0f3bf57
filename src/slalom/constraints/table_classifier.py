"""LM tokens to class margin: the paper's classifier, which reads the LM's own embedding table.

An encoder body behind one linear projection of the LM's table, as in MuCoLa and BOLT. The projection starts as the
least-squares map between the two tables on their shared vocabulary; the LM's table itself is never stored or trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from slalom.backbone.placement import place
from slalom.backbone.saved import EncoderFacts, window
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.classifier import MarginConstraint, label_index, margin
from slalom.constraints.encoder import Reads, dot_products, known_reads
from slalom.constraints.loading import card, load_classifier, load_projection, located
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class TableEncoder(nn.Module):
    """A sequence classifier whose word embeddings are a projection of the LM's."""

    def __init__(self, body: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, projection: torch.Tensor) -> None:
        super().__init__()
        self.body = body
        self.projection = nn.Parameter(projection)  # [d_lm, d]
        self.first, self.last = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.longest = window(body) - 2  # of the LM's tokens, between the first and the last

    def forward(self, embeddings: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Class logits [B, classes] of LM embeddings [B, m, d_lm] whose real tokens, right-padded, `mask` marks."""
        words = self.body.get_input_embeddings().weight
        batch, length = mask.shape
        ends = torch.arange(length + 2, device=mask.device) == mask.sum(1, keepdim=True) + 1  # SEP's place
        inputs = nn.functional.pad(embeddings @ self.projection, (0, 0, 1, 1))
        inputs = torch.where(ends[..., None], words[self.last], inputs)
        inputs = torch.cat([words[self.first].expand(batch, 1, -1), inputs[:, 1:]], dim=1)
        seen = nn.functional.pad(mask, (1, 1)) | ends.to(mask.dtype)
        seen[:, 0] = 1
        logits: torch.Tensor = self.body(inputs_embeds=inputs, attention_mask=seen).logits
        return logits


class TableClassifier(MarginConstraint):
    """A label of a classifier made by `slalom train classifier --lm`, for that LM alone: no alignment needed.

    The folder may be named as a shipped one is. It reads the prompt followed by the continuation, or the latter alone.
    """

    def __init__(
        self,
        folder: str | Path,
        label: str | int,
        name: str | None = None,
        reads: Reads = "text",
        description: str | None = None,
    ) -> None:
        self.description = description
        home = located(str(folder))
        body, tokenizer = load_classifier(str(home))
        self.encoder = TableEncoder(body, tokenizer, load_projection(home)).eval().requires_grad_(False)
        labels = EncoderFacts.of(body).labels
        self.label = label_index(labels, label)
        self.lm = card(home)["lm"]
        self.reads = known_reads(reads)
        self.label_name = labels[self.label]
        self.name = name or f"classifier:{self.label_name}"

    def score(self, draft: Draft) -> torch.Tensor:
        """The margin of what is read, as the LM's tokens."""
        with torch.no_grad():
            embeddings, mask, _ = self._embed(draft)
            return margin(self.encoder(embeddings, mask), self.label)

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """The gradient at each position's embedding times each candidate's."""
        embeddings, mask, starts = self._embed(draft)
        with torch.enable_grad():
            embeddings.requires_grad_()
            f = margin(self.encoder(embeddings, mask), self.label)
            (gradients,) = torch.autograd.grad(f.sum(), embeddings)
        n = candidates.shape[1]
        # What was not read has no gradient: before the window, where a start is negative, and past a row's end.
        own = nn.functional.pad(gradients, (0, 0, n, n))
        collected = torch.stack([row[n + start : n + start + n] for row, start in zip(own, starts, strict=True)])
        return dot_products(collected * draft.real[..., None], draft.vocabulary.embeddings.float(), candidates)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """The margin of mixtures of the table's rows; at one-hots, exactly the score."""
        table = relaxed.vocabulary.embeddings.float()
        soft = relaxed.mixtures.float() @ table
        rows = [torch.cat([table[self._before(p)], row]) for p, row in zip(relaxed.prompts, soft, strict=True)]
        return margin(self.encoder(*self._pad(rows)), self.label)

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Only for the LM it was made for."""
        width = vocabulary.embeddings.shape[1]
        if width != self.encoder.projection.shape[0]:
            raise SlalomError(
                f"this classifier reads the embedding table of {self.lm} (width {self.encoder.projection.shape[0]}), "
                f"but the model's table has width {width}; train one with slalom train classifier --lm"
            )

    def _before(self, prompt: Prompt) -> list[int]:
        """The tokens read before the continuation, not what the LM is told; in a chat the answer stands alone."""
        return list(prompt.untold.ids) if self.reads == "text" and prompt.asked is None else []

    def _embed(self, draft: Draft) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
        """Embeddings [B, m, d_lm] of what is read, their mask, and where each continuation starts (below 0: cut)."""
        table = draft.vocabulary.embeddings
        ends = draft.lengths.tolist()
        tokens = draft.tokens.tolist()
        ids = [self._before(p) + row[:end] for p, row, end in zip(draft.prompts, tokens, ends, strict=True)]
        rows = [table[row].float() for row in ids]
        embeddings, mask = self._pad(rows)
        starts = [min(len(row), self.encoder.longest) - end for row, end in zip(ids, ends, strict=True)]
        return embeddings, mask, starts

    def _pad(self, rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows [m_i, d_lm] right-padded, each cut to its end if it is too long for the encoder."""
        cut = [row[-self.encoder.longest :] for row in rows]
        place(self.encoder, cut[0].device)
        mask = nn.utils.rnn.pad_sequence([torch.ones(len(row), dtype=torch.long) for row in cut], batch_first=True)
        return nn.utils.rnn.pad_sequence(cut, batch_first=True), mask.to(cut[0].device)


def shared_vocabulary(lm: PreTrainedTokenizerBase, clf: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Pairs of token ids that spell the same, word-initial or continuing alike, whatever their case."""
    pieces = clf.get_vocab()
    ours, theirs = [], []
    for token, text in enumerate(lm.batch_decode([[token] for token in range(len(lm))])):
        piece = text[1:].lower() if text.startswith(" ") else "##" + text.lower()
        if piece in pieces:
            ours.append(token)
            theirs.append(pieces[piece])
    return ours, theirs


def least_squares_projection(
    lm_table: torch.Tensor, clf_table: torch.Tensor, ours: list[int], theirs: list[int]
) -> torch.Tensor:
    """The linear map [d_lm, d] that carries the LM's rows closest to the classifier's on the shared vocabulary."""
    solution: torch.Tensor = torch.linalg.lstsq(lm_table[ours].float(), clf_table[theirs].float()).solution
    return solution
