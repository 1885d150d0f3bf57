"""Hidden states to steered hidden states: LM-Steer's low-rank maps, applied just before the LM's head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from slalom.backbone.hooks import in_this_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Change = Callable[[torch.Tensor], torch.Tensor]  # hidden states [B, m, d] → what to add to them


class Steers(NamedTuple):
    """One linear map of hidden states a steer, each a product of two thin matrices."""

    down: torch.Tensor  # [S, d, r], the paper's P1
    up: torch.Tensor  # [S, d, r], P2
    epsilon: float  # the maps' unit

    @property
    def width(self) -> int:
        """The hidden size of the LM they were made for."""
        return self.down.shape[1]

    def to(self, device: torch.device) -> Steers:
        """The same on a device."""
        return self._replace(down=self.down.to(device), up=self.up.to(device))

    def change(self, hidden: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """What steering adds: epsilon times the sum over steers of v_s (h P1_s) P2_s^T, [B, m, d].

        `values` are the v of every row, [B, S], or [1, S] for all rows alike.
        """
        states = hidden.to(self.down.device, self.down.dtype)
        inner = torch.einsum("bmd,sdr->bmsr", states, self.down) * values[:, None, :, None]
        return self.epsilon * torch.einsum("bmsr,sdr->bmd", inner, self.up).to(hidden.device)


@contextmanager
def steering(model: PreTrainedModel, change: Change) -> Iterator[None]:
    """Within this block, and in this thread, the LM's head reads its hidden states plus their change."""

    def changed(head: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *others = inputs
        return ((hidden + change(hidden)).to(hidden.dtype), *others)

    hook = model.get_output_embeddings().register_forward_pre_hook(in_this_thread(changed))
    try:
        yield
    finally:
        hook.remove()


def hidden_size(model: PreTrainedModel) -> int:
    """How wide the hidden states are that the LM's head reads."""
    return int(model.get_output_embeddings().weight.shape[1])
