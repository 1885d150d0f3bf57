"""Prompts to logits, one position at a time, and back to any earlier position: the seam that faster engines fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from transformers.cache_utils import Cache, DynamicLayer

from slalom.errors import SlalomError
from slalom.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rows = TypeVar("Rows", torch.Tensor, list[int] | torch.Tensor)


class Memory(NamedTuple):
    """What an engine keeps of texts it has read: tensors whose first dimension is the rows.

    The layers of a model may be spread over devices, and their tensors with them.
    """

    tensors: list[torch.Tensor]  # keys and values of every layer, [B, heads, prompt + continuation, d]

    def select(self, rows: list[int] | torch.Tensor) -> Memory:
        """Only these rows, in this order."""
        return Memory([tensor[_beside(rows, tensor)] for tensor in self.tensors])

    def reorder(self, rows: torch.Tensor) -> Memory:
        """The same rows in this order, one tensor after the other so that never two of all are held."""
        for i, tensor in enumerate(self.tensors):
            self.tensors[i] = tensor[_beside(rows, tensor)]
        return self

    @torch.inference_mode()
    def where(self, take: torch.Tensor, other: Memory) -> Memory:
        """This memory's rows where `take` says so, bool [B], the other's elsewhere: written into this one."""
        if not take.any():
            return other
        if not take.all():
            for tensor, their in zip(self.tensors, other.tensors, strict=True):
                left = ~_beside(take, tensor)
                tensor[left] = their[left]
        return self

    def join(self, other: Memory, prompts: tuple[int, int]) -> Memory:
        """The rows of both, whose prompts took so many columns each: padded before the prompts and after the texts."""
        widest = max(prompts)
        left = [widest - own for own in prompts]
        columns = max(before + own.tensors[0].shape[2] for before, own in zip(left, (self, other), strict=True))
        return Memory([_joined(pair, left, columns) for pair in zip(self.tensors, other.tensors, strict=True)])


def _joined(pair: tuple[torch.Tensor, ...], left: list[int], columns: int) -> torch.Tensor:
    """Tensors [_, heads, _, d] below one another, each so many columns from the left of a width they share."""
    _, heads, _, width = pair[0].shape
    both = pair[0].new_zeros(sum(map(len, pair)), heads, columns, width)
    row = 0
    for tensor, before in zip(pair, left, strict=True):
        both[row : row + len(tensor), :, before : before + tensor.shape[2]] = tensor
        row += len(tensor)
    return both


def _beside(rows: Rows, tensor: torch.Tensor) -> Rows:
    """An index on the device of what it is to index."""
    return rows.to(tensor.device) if isinstance(rows, torch.Tensor) else rows


class Prefix(NamedTuple):
    """Prompts the engine has read: what it needs to continue them again and again."""

    memory: Memory  # [P, ...]
    mask: torch.Tensor  # [P, m]
    logits: torch.Tensor  # [P, V] float32, after each prompt's last token

    def select(self, rows: list[int] | torch.Tensor) -> Prefix:
        """Only these rows, in this order."""
        return Prefix(self.memory.select(rows), self.mask[rows], self.logits[rows])

    def join(self, other: Prefix) -> Prefix:
        """The prompts of both, padded on the left."""
        both = (self, other)
        columns = [own.mask.shape[1] for own in both]
        masks = [torch.nn.functional.pad(own.mask, (max(columns) - own.mask.shape[1], 0)) for own in both]
        memory = self.memory.join(other.memory, (columns[0], columns[1]))
        return Prefix(memory, torch.cat(masks), torch.cat([self.logits, other.logits]))


class Pass(Protocol):
    """One rollout under way."""

    @property
    def memory(self) -> Memory:
        """Of the rows so far."""

    def read(self, position: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Put tokens [B] at a position of the continuations; the logits after it of some rows [a], ascending: float32.

        The other rows may be left alone: their memory of this position is right already, or not needed any more.
        """


class Engine(Protocol):
    """Runs the LM. It knows nothing of constraints or bias."""

    name: str

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""

    def start(self, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory | None) -> Pass:
        """A rollout of at most `room` tokens whose row i continues prompt `rows[i]`.

        It may overwrite `memory`, what an earlier rollout left of the same rows; without it, it starts at the prompts.
        """

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor) -> torch.Tensor:
        """The LM's log-probability of every token [B, n] of continuations given whole: [B, n] float32."""


class TransformersEngine:
    """The reference engine: the unmodified Hugging Face model, eager."""

    name = "torch"

    def __init__(self, model: PreTrainedModel) -> None:
        if model._is_stateful:
            raise SlalomError(f"{type(model).__name__} keeps a running state that cannot be taken back to a position")
        self.model = model

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""
        positions = (prompts.mask.cumsum(-1) - 1).clamp(min=0)
        cache = Cache(layer_class_to_replicate=DynamicLayer)
        out = self.model(
            input_ids=prompts.ids,
            attention_mask=prompts.mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return Prefix(Memory(tensors), prompts.mask, out.logits[:, -1].float())

    def start(self, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory | None) -> Pass:
        """A rollout in room set aside beforehand, so that nothing grows while it runs."""
        return _TransformersPass(self.model, prefix, rows, room, memory)

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor) -> torch.Tensor:
        """All positions in one pass."""
        mask = torch.cat([prompts.mask, torch.ones_like(tokens)], dim=1)
        out = self.model(
            input_ids=torch.cat([prompts.ids, tokens], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            logits_to_keep=tokens.shape[1] + 1,
        )
        return out.logits[:, :-1].float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


class _TransformersPass:
    def __init__(
        self, model: PreTrainedModel, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory | None
    ) -> None:
        self.model = model
        self.memory = memory or _with_room(prefix.memory, rows, room)
        tensors = iter(self.memory.tensors)
        self.layers = [_Room(keys, values) for keys, values in zip(tensors, tensors, strict=True)]
        self.cache = Cache(layers=list(self.layers))
        self.prompt = prefix.mask.shape[1]
        self.mask = torch.cat([prefix.mask[rows], prefix.mask.new_ones(len(rows), room)], dim=1)
        self.positions = prefix.mask.sum(-1)[rows, None]  # [B, 1], of the continuation's first token

    def read(self, position: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Up to the last of these rows all go along: the cache is read without copying it."""
        column, count = self.prompt + position, int(rows[-1]) + 1
        for layer in self.layers:
            layer.filled = column
        out = self.model(
            input_ids=tokens[:count, None],
            attention_mask=self.mask[:count, : column + 1],
            position_ids=self.positions[:count] + position,
            past_key_values=self.cache,
            use_cache=True,
        )
        logits = out.logits[:, -1]
        return (logits if len(rows) == count else logits[rows]).float()


class _Room(DynamicLayer):  # type: ignore[misc]
    """A layer's cache in tensors of fixed size, of which the first columns are filled and the first rows in use."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.filled = keys, values, 0
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, start, self.filled = len(key_states), self.filled, self.filled + key_states.shape[-2]
        self.keys[:rows, :, start : self.filled] = key_states
        self.values[:rows, :, start : self.filled] = value_states
        return self.keys[:rows, :, : self.filled], self.values[:rows, :, : self.filled]

    def get_seq_length(self) -> int:
        return self.filled


def _with_room(memory: Memory, rows: torch.Tensor, room: int) -> Memory:
    """The prompts' memory, a row a continuation, with room for `room` more tokens each."""
    wider = []
    for tensor in memory.tensors:
        _, heads, columns, width = tensor.shape
        wider.append(tensor.new_zeros(len(rows), heads, columns + room, width))
        wider[-1][:, :, :columns] = tensor[_beside(rows, tensor)]
    return Memory(wider)
