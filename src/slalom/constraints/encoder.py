"""Text to any number an encoder gives: the shared half of classifiers and similarity, with the encoder's own tokens."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints import alignment
from slalom.constraints.constraint import Constraint
from slalom.errors import SlalomError
from slalom.types import Draft, Prompt, Relaxed

Reads = Literal["text", "continuation"]  # the prompt followed by the continuation, or the continuation alone
TOGETHER = 8  # texts read in one pass: more bring nothing but padding, and memory for gradients


class EncoderConstraint(Constraint):
    """A constraint whose f is computed by an encoder with a tokenizer of its own. Subclasses give `_f`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reads: Reads) -> None:
        if not tokenizer.is_fast:
            raise SlalomError("the classifier's tokenizer must be a fast one: character offsets are needed to align it")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.reads = known_reads(reads)
        self._tables: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()

    @abstractmethod
    def _f(self, encoded: dict[str, torch.Tensor]) -> torch.Tensor:
        """f of the encoder's inputs, differentiable in its word embeddings: [B]."""

    def score(self, draft: Draft) -> torch.Tensor:
        """f of the real text, read with the encoder's own tokens: each text but once, those of like length together."""
        texts = self._texts(draft)
        different = sorted(set(texts), key=lambda text: (len(text), text))
        found: dict[str, float] = {}
        for start in range(0, len(different), TOGETHER):
            some = different[start : start + TOGETHER]
            with torch.inference_mode():
                encoded, _ = self._encode(some, draft.tokens.device)
                found.update(zip(some, self._f(encoded).tolist(), strict=True))
        return torch.tensor([found[text] for text in texts], device=draft.tokens.device)

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """The collected gradient of each position times each candidate's embedding, a few rows at a time."""
        rows = torch.arange(len(candidates)).split(TOGETHER)
        return torch.cat([self._candidate_scores(draft.select(some), candidates[some]) for some in rows])

    def _candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        encoded, offsets = self._encode(self._texts(draft), draft.tokens.device)
        watched: list[torch.Tensor] = []

        def watch(embeddings: torch.Tensor) -> torch.Tensor:
            watched.append(embeddings.detach().requires_grad_())
            return watched[-1]

        with torch.enable_grad(), replaced_embeddings(self.model, watch):
            (gradients,) = torch.autograd.grad(self._f(encoded).sum(), watched)
        rows = [row[:end] for row, end in zip(draft.tokens.tolist(), draft.lengths.tolist(), strict=True)]
        starts = [len(self._before(prompt)) for prompt in draft.prompts]
        spans = [
            [(start + begin, start + end) for begin, end in row]
            for start, row in zip(starts, draft.vocabulary.spans(draft.prompts, rows), strict=True)
        ]
        collected = alignment.collect(gradients.float(), offsets, spans, candidates.shape[1])
        return dot_products(collected, self._table(draft.vocabulary), candidates)

    def relaxed_score(self, relaxed: Relaxed) -> torch.Tensor:
        """f where each mixture is one position of the encoder: the mixture of its tokens' embeddings."""
        n = relaxed.mixtures.shape[1]
        encoded, starts = self._encode_around(relaxed.prompts, n, relaxed.mixtures.device)
        soft = relaxed.mixtures.float() @ self._table(relaxed.vocabulary)  # [B, n, d]

        def mixed(embeddings: torch.Tensor) -> torch.Tensor:
            out = embeddings.clone()
            for row, start in enumerate(starts):
                out[row, start : start + n] = soft[row].to(out.dtype)
            return out

        with replaced_embeddings(self.model, mixed):
            return self._f(encoded)

    def check(self, vocabulary: Vocabulary, length: int) -> None:
        """Refuses nothing, but builds the table now, while little else is in memory."""
        self._table(vocabulary)

    def _table(self, vocabulary: Vocabulary) -> torch.Tensor:
        """Every LM token as an embedding of the encoder, built once per LM: [V, d]."""
        if vocabulary not in self._tables:
            embeddings = self.model.get_input_embeddings().weight.detach()
            self._tables[vocabulary] = alignment.candidate_table(vocabulary, self.tokenizer, embeddings)
        return self._tables[vocabulary]

    def _before(self, prompt: Prompt) -> str:
        """What is read before the continuation."""
        return prompt.text if self.reads == "text" else ""

    def _texts(self, draft: Draft) -> list[str]:
        """What is read of each row."""
        return [self._before(prompt) + text for prompt, text in zip(draft.prompts, draft.texts, strict=True)]

    def _encode(
        self, texts: list[str], device: torch.device
    ) -> tuple[dict[str, torch.Tensor], list[list[alignment.Span]]]:
        """Texts as the encoder's own tokens, and where each stands in its text."""
        encoded = self._tokenize(texts, padding=True, return_tensors="pt")
        offsets = [[(start, end) for start, end in row] for row in encoded.pop("offset_mapping").tolist()]
        return self._placed(encoded, device), offsets

    def _encode_around(
        self, prompts: list[Prompt], n: int, device: torch.device
    ) -> tuple[dict[str, torch.Tensor], list[int]]:
        """Prompts with n open positions after each, and where those start."""
        filler = self.tokenizer.unk_token_id if self.tokenizer.unk_token_id is not None else self.tokenizer.pad_token_id
        rows, starts = [], []
        first = self._first()
        encoded = self._tokenize([self._before(prompt) for prompt in prompts])
        for ids, offsets in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            start = max((i + 1 for i, (begin, end) in enumerate(offsets) if end > begin), default=first)
            rows.append(ids[:start] + [filler] * n + ids[start:])
            starts.append(start)
        padded = self.tokenizer.pad({"input_ids": rows}, padding_side="right", return_tensors="pt")
        return self._placed(padded, device), starts

    def _first(self) -> int:
        """Where a text's first token stands among the special ones."""
        (offsets,) = self._tokenize(["a"])["offset_mapping"]
        return next((i for i, (begin, end) in enumerate(offsets) if end > begin), 0)

    def _tokenize(self, texts: list[str], **how: Any) -> Any:
        """Texts to tokens with offsets; of one too long for the encoder, the end is kept."""
        self.tokenizer.truncation_side, self.tokenizer.padding_side = "left", "right"
        longest = min(self.tokenizer.model_max_length, getattr(self.model.config, "max_position_embeddings", 512))
        return self.tokenizer(texts, truncation=True, max_length=longest, return_offsets_mapping=True, **how)

    def _placed(self, encoded: Any, device: torch.device) -> dict[str, torch.Tensor]:
        """The inputs on the LM's device, and the encoder with them."""
        if self.model.device != device:
            self.model.to(device)
        return {key: value.to(device) for key, value in encoded.items()}


def known_reads(reads: str) -> Reads:
    """What to read, if it is one of the choices."""
    for choice in get_args(Reads):
        if reads == choice:
            return choice
    raise SlalomError(f"reads is {reads!r}; choose from {', '.join(get_args(Reads))}")


def dot_products(gradients: torch.Tensor, table: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
    """gradients [B, n, d] · table[candidates] → [B, n, k], row by row so that [B, n, k, d] never exists."""
    rows = [
        torch.bmm(table[own], gradient[:, :, None])[..., 0] for own, gradient in zip(candidates, gradients, strict=True)
    ]
    return torch.stack(rows)


@contextlib.contextmanager
def replaced_embeddings(model: PreTrainedModel, replace: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """While open, the model reads `replace(its word embeddings)` instead of its word embeddings."""
    hook = model.get_input_embeddings().register_forward_hook(lambda module, args, output: replace(output))
    try:
        yield
    finally:
        hook.remove()
