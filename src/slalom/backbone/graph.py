"""Embeddings to logits, with the graph from each position back to all before it: what gradient samplers need."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import Cache, DynamicLayer

from slalom.backbone.engine import Prefix, TensorMemory
from slalom.backbone.passes import count_passes

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GraphPass:
    """One rollout under way that continues row i of the prefix in row i; its cache is a part of the graph."""

    def __init__(self, model: PreTrainedModel, prefix: Prefix) -> None:
        self.model = model
        self.mask = prefix.mask
        self.cache = Cache(layer_class_to_replicate=DynamicLayer)
        assert isinstance(prefix.memory, TensorMemory)
        tensors = iter(prefix.memory.tensors)
        for layer, (keys, values) in enumerate(zip(tensors, tensors, strict=True)):
            self.cache.update(keys, values, layer)

    def read(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Put embeddings [B, m, d] at the next positions; the logits after each, [B, m, V] float32."""
        count = embeddings.shape[1]
        count_passes(len(embeddings), count)
        self.mask = torch.nn.functional.pad(self.mask, (0, count), value=1)
        out = self.model(
            inputs_embeds=embeddings,
            attention_mask=self.mask,
            position_ids=self.mask.cumsum(-1)[:, -count:] - 1,
            past_key_values=self.cache,
            use_cache=True,
        )
        return out.logits.float()


class _Frozen(NamedTuple):
    """A model that some passes keep frozen."""

    passes: int
    trainable: list[torch.nn.Parameter]  # before the first of them


_FROZEN: WeakKeyDictionary[PreTrainedModel, _Frozen] = WeakKeyDictionary()
_FREEZING = threading.Lock()


@contextlib.contextmanager
def frozen(model: PreTrainedModel) -> Iterator[None]:
    """While open, no parameter is part of a graph: nothing is kept for its gradient.

    Parameters belong to all threads, so the first pass to open it freezes them and the last to close it thaws them.
    """
    with _FREEZING:
        passes, trainable = _FROZEN.get(model) or (0, [one for one in model.parameters() if one.requires_grad])
        _FROZEN[model] = _Frozen(passes + 1, trainable)
        for parameter in trainable:
            parameter.requires_grad_(False)
    try:
        yield
    finally:
        with _FREEZING:
            passes, trainable = _FROZEN.pop(model)
            if passes > 1:
                _FROZEN[model] = _Frozen(passes - 1, trainable)
            else:
                for parameter in trainable:
                    parameter.requires_grad_(True)


@torch.no_grad()
def input_table(model: PreTrainedModel) -> torch.Tensor:
    """What the model reads for every token, [V, d]: its embeddings with the factor some models put on them."""
    embeddings = model.get_input_embeddings()
    return embeddings(torch.arange(len(embeddings.weight), device=model.device))


def output_table(model: PreTrainedModel) -> torch.Tensor:
    """The weights of the head, [V, d], without its bias; beside the input table, wherever the head itself is."""
    return model.get_output_embeddings().weight.detach().to(model.device)
