"""Prompts to logits, one position at a time, and back to any earlier position: the seam that faster engines fill."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from transformers.cache_utils import Cache, DynamicLayer

from slalom.errors import SlalomError
from slalom.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
Rows = TypeVar("Rows", torch.Tensor, list[int] | torch.Tensor)


class Memory(Protocol):
    """What an engine keeps of texts it has read, a row each."""

    def select(self, rows: list[int] | torch.Tensor) -> Memory:
        """Only these rows, in this order."""

    def reorder(self, rows: torch.Tensor) -> Memory:
        """The same rows in this order; what it was made of is not needed any more."""

    def where(self, take: torch.Tensor, other: Any) -> Memory:
        """These rows where `take` says so, bool [B], the other's elsewhere; this one is not needed any more."""

    def join(self, other: Any, prompts: tuple[int, int]) -> Memory:
        """The rows of both, whose prompts took so many columns each."""


class TensorMemory(NamedTuple):
    """Memory in tensors whose first dimension is the rows.

    The layers of a model may be spread over devices, and their tensors with them.
    """

    tensors: list[torch.Tensor]  # keys and values of every layer, [B, heads, prompt + continuation, d]

    def select(self, rows: list[int] | torch.Tensor) -> TensorMemory:
        """Only these rows, in this order."""
        return TensorMemory([tensor[_beside(rows, tensor)] for tensor in self.tensors])

    def reorder(self, rows: torch.Tensor) -> TensorMemory:
        """The same rows in this order, one tensor after the other so that never two of all are held."""
        for i, tensor in enumerate(self.tensors):
            self.tensors[i] = tensor[_beside(rows, tensor)]
        return self

    @torch.inference_mode()
    def where(self, take: torch.Tensor, other: TensorMemory) -> TensorMemory:
        """This memory's rows where `take` says so, bool [B], the other's elsewhere: written into this one."""
        if not take.any():
            return other
        if not take.all():
            for tensor, their in zip(self.tensors, other.tensors, strict=True):
                left = ~_beside(take, tensor)
                tensor[left] = their[left]
        return self

    def join(self, other: TensorMemory, prompts: tuple[int, int]) -> TensorMemory:
        """The rows of both, whose prompts took so many columns each: padded before the prompts and after the texts."""
        widest = max(prompts)
        left = [widest - own for own in prompts]
        columns = max(before + own.tensors[0].shape[2] for before, own in zip(left, (self, other), strict=True))
        return TensorMemory([_joined(pair, left, columns) for pair in zip(self.tensors, other.tensors, strict=True)])


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
    """One rollout under way, every row at a position of its own."""

    @property
    def memory(self) -> Memory:
        """Of the rows so far."""

    def read(self, step: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Put tokens [B] at the position that is so many steps after each row's first; the logits [a, V] after them.

        Of some rows [a], ascending; float32. The others may be left alone: what they have read will do.
        """


class Engine(Protocol):
    """Runs the LM. It knows nothing of constraints or bias."""

    name: str
    pads: bool  # whether every row takes the room of the longest prompt and text

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""

    def start(self, prefix: Prefix, rows: torch.Tensor, places: list[int], room: int, memory: Memory | None) -> Pass:
        """A rollout of at most `room` tokens whose row i continues prompt `rows[i]`, and reads from `places[i]` on.

        It may overwrite `memory`, what an earlier rollout left of the same rows; without it, it starts at the prompts.
        The fewer positions a row has left, the later it comes.
        """

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """The LM's log-probability of every token [B, n] of continuations given whole: [B, n] float32.

        Each has so many tokens [B]; what stands after them is anything.
        """

    def side_by_side(self, tasks: list[Callable[[], T]]) -> list[T]:
        """What each task returns: one after the other, or at once if their rollouts can then share passes."""


class TransformersEngine:
    """The reference engine: the unmodified Hugging Face model, eager."""

    name = "torch"
    pads = True

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
        return Prefix(TensorMemory(tensors), prompts.mask, out.logits[:, -1].float())

    def start(self, prefix: Prefix, rows: torch.Tensor, places: list[int], room: int, memory: Memory | None) -> Pass:
        """A rollout in room set aside beforehand, so that nothing grows while it runs."""
        return _TransformersPass(self.model, prefix, rows, places, room, memory)

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """All positions in one pass."""
        mask = torch.cat([prompts.mask, torch.ones_like(tokens)], dim=1)
        out = self.model(
            input_ids=torch.cat([prompts.ids, tokens], dim=1),
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
            logits_to_keep=tokens.shape[1] + 1,
        )
        return out.logits[:, :-1].float().log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def side_by_side(self, tasks: list[Callable[[], T]]) -> list[T]:
        """One after the other."""
        return [task() for task in tasks]


class _TransformersPass:
    def __init__(
        self,
        model: PreTrainedModel,
        prefix: Prefix,
        rows: torch.Tensor,
        places: list[int],
        room: int,
        memory: Memory | None,
    ) -> None:
        self.model = model
        self.memory = _tensors(memory) if memory is not None else _with_room(_tensors(prefix.memory), rows, room)
        tensors = iter(self.memory.tensors)
        self.layers = [_Room(keys, values) for keys, values in zip(tensors, tensors, strict=True)]
        self.cache = Cache(layers=list(self.layers))
        prompt = prefix.mask.shape[1]
        self.reach = [prompt + farthest for farthest in itertools.accumulate(places, max)]  # of a row and those before
        self.prompt, self.places = prompt, torch.tensor(places, device=rows.device)
        self.mask = torch.cat([prefix.mask[rows], prefix.mask.new_ones(len(rows), room)], dim=1)
        self.positions = prefix.mask.sum(-1)[rows] - prompt  # [B], to be added to a column

    def read(self, step: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Up to the last of these rows all go along: the cache is read without copying it."""
        count = int(rows[-1]) + 1
        # A row that has nothing to read before its first position reads there: that is written again.
        columns = self.prompt + (self.places[:count] + step).clamp(min=0)  # [count]
        width = max(self.reach[count - 1] + step, self.prompt) + 1
        for layer in self.layers:
            layer.columns, layer.filled = columns, width - 1
        seen = torch.arange(width, device=columns.device) <= columns[:, None]
        out = self.model(
            input_ids=tokens[:count, None],
            attention_mask=self.mask[:count, :width] * seen,
            position_ids=(self.positions[:count] + columns)[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        logits = out.logits[:, -1]
        return (logits if len(rows) == count else logits[rows]).float()


class _Room(DynamicLayer):  # type: ignore[misc]
    """A layer's cache in tensors of fixed size: the first rows in use, each with its next token at its own column."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.filled = keys, values, 0
        self.columns = torch.zeros(0, dtype=torch.long)  # [B], where the next tokens go
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, self.filled = len(key_states), self.filled + 1
        each, columns = torch.arange(rows, device=self.keys.device), _beside(self.columns, self.keys)
        self.keys[each, :, columns] = key_states[:, :, 0]
        self.values[each, :, columns] = value_states[:, :, 0]
        return self.keys[:rows, :, : self.filled], self.values[:rows, :, : self.filled]

    def get_seq_length(self) -> int:
        return self.filled


def _tensors(memory: Memory) -> TensorMemory:
    """This engine's own kind of memory."""
    assert isinstance(memory, TensorMemory)
    return memory


def _with_room(memory: TensorMemory, rows: torch.Tensor, room: int) -> TensorMemory:
    """The prompts' memory, a row a continuation, with room for `room` more tokens each."""
    wider = []
    for tensor in memory.tensors:
        _, heads, columns, width = tensor.shape
        wider.append(tensor.new_zeros(len(rows), heads, columns + room, width))
        wider[-1][:, :, :columns] = tensor[_beside(rows, tensor)]
    return TensorMemory(wider)
