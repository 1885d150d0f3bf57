"""Prompts to logits, one position at a time, and back to the prompts: the seam that faster engines fill."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Protocol

import torch
from transformers import PreTrainedModel

from slalom.types import Tokens


class Prefix(NamedTuple):
    """Prompts the engine has read: what it needs to continue them again and again."""

    cache: Any
    mask: torch.Tensor  # [P, m]
    logits: torch.Tensor  # [P, V], after each prompt's last token


class Pass(Protocol):
    """One rollout under way."""

    logits: torch.Tensor  # [B, V] float32, for the next position

    def advance(self, tokens: torch.Tensor) -> None:
        """Append one token to every row, so that `logits` are those of the position after it."""


class Engine(Protocol):
    """Runs the LM. It knows nothing of constraints or bias."""

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""

    def start(self, prefix: Prefix, rows: torch.Tensor, room: int) -> Pass:
        """A rollout of at most `room` tokens whose row i continues prompt `rows[i]`."""


class TransformersEngine:
    """The reference engine: the unmodified Hugging Face model, eager, with its own cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""
        positions = (prompts.mask.cumsum(-1) - 1).clamp(min=0)
        out = self.model(
            input_ids=prompts.ids,
            attention_mask=prompts.mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
        )
        return Prefix(out.past_key_values, prompts.mask, out.logits[:, -1].float())

    def start(self, prefix: Prefix, rows: torch.Tensor, room: int) -> Pass:
        """A rollout whose row i continues prompt `rows[i]`, on its own copy of the prompts' cache."""
        return _TransformersPass(self.model, prefix, rows, room)


class _TransformersPass:
    def __init__(self, model: PreTrainedModel, prefix: Prefix, rows: torch.Tensor, room: int) -> None:
        self.model = model
        self.cache = copy.deepcopy(prefix.cache)
        self.cache.batch_select_indices(rows)
        self.length = prefix.mask.shape[1]
        self.positions = prefix.mask.sum(-1)[rows, None]  # [B, 1], of the next token
        self.mask = torch.cat([prefix.mask[rows], prefix.mask.new_ones(len(rows), room)], dim=1)
        self.logits = prefix.logits[rows]

    def advance(self, tokens: torch.Tensor) -> None:
        self.length += 1
        out = self.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask[:, : self.length],
            position_ids=self.positions,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.positions = self.positions + 1
        self.logits = out.logits[:, -1].float()
