"""Text to likeness: how near its sentence embedding lies to a given text's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slalom.constraints.constraint import Likeliest, first
from slalom.constraints.encoder import EncoderConstraint, Reads
from slalom.constraints.loading import open_encoder
from slalom.errors import SlalomError
from slalom.types import Draft

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ENCODER = "minilm-l6"
SCALE = 8.0  # half a cosine above the least is what a classifier gives that is sure


class Similar(EncoderConstraint):
    """Meaning much the same as a given text: f is 8 times (cosine of the sentence embeddings - least).

    `model` is an encoder whose last hidden states are averaged, with its `tokenizer`; the embedded MiniLM if left out.
    It reads the prompt followed by the continuation, or the continuation alone.
    """

    def __init__(
        self,
        text: str,
        least: float = 0.5,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        reads: Reads = "text",
    ) -> None:
        if not text.strip():
            raise SlalomError("the text to be similar to is empty; give at least one word")
        if not -1 < least < 1:
            raise SlalomError(f"least is {least:g}; it must be a cosine, above -1 and below 1")
        opened, tokenizer = open_encoder(ENCODER) if model is None else (model, tokenizer)
        if tokenizer is None:
            raise SlalomError("an encoder given as a model object needs its tokenizer too")
        super().__init__(opened, tokenizer, reads, ours=model is None)
        self.text, self.least = text, least
        self.name = f"similar:{text}"
        with torch.no_grad():
            self._wished = self._outputs(self._encode([text], self.model.device).inputs)  # [1, d]

    def describe(self, likeliest: Likeliest = first) -> str:
        """What it should be like."""
        return f"means much the same as: {self.text.strip().rstrip('.')}"

    def satisfied(self, draft: Draft) -> torch.Tensor:
        """Whether the cosine is at least what was asked for."""
        return self.score(draft) >= 0

    def _outputs(self, encoded: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sentence embeddings of length 1: [B, d]."""
        mask = encoded["attention_mask"][..., None]
        hidden = self.model(**encoded).last_hidden_state  # [B, m, d]
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    def _f(self, outputs: torch.Tensor) -> torch.Tensor:
        return SCALE * ((outputs * self._wished.to(outputs.device, outputs.dtype)).sum(-1).float() - self.least)
