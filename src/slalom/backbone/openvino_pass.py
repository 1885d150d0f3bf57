"""Tokens to logits by a compiled OpenVINO graph whose cache is its state: prompts read, rollouts under way."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from torch import nn

from slalom.backbone.engine import Memory, Prefix
from slalom.types import Tokens

HIDDEN = -1e9  # added to the attention scores of what must not be seen
VECTOR = 16  # numbers that a CPU adds up at once
STEADY = 4  # rows to fill up to at the most: more would make a single text slow
TOGETHER = 32  # rows of a request: more are hardly faster a row, and all of them wait for the last


class Graph(NamedTuple):
    """A compiled graph, the fewest rows it is given, and whose turn it is.

    Its requests run one after the other anyway. They take turns with everything they do: two threads that set their
    inputs at the same moment can wait for each other forever, one for the graph and one for Python.
    """

    compiled: ov.CompiledModel
    least_rows: int  # with fewer, a row's logits would not be those it gets among others
    turn: threading.Lock


def prefill(graph: Graph, prompts: Tokens) -> Prefix:
    """Read the prompts once, padded to a width that differs by whole vectors at the most from that in another batch.

    Sums over a row of attention scores are added up in vectors; shifted within these, their last bit changes, and with
    it what eight-bit activations are rounded to.
    """
    missing = -prompts.ids.shape[1] % VECTOR
    ids, mask = (nn.functional.pad(tensor, (missing, 0)) for tensor in prompts)
    request, positions = _Request(graph), (mask.cumsum(-1) - 1).clamp(min=0)
    return Prefix(logits=request.read(ids, _seen(mask, ids.shape[1]), positions), memory=request.memory, mask=mask)


@torch.inference_mode()
def steady_rows(compiled: ov.CompiledModel) -> int | None:
    """The fewest rows from which on a row's logits are the same to the last bit, whoever is beside it.

    OpenVINO takes another kernel for a single row than for several where it quantises activations. None if there is no
    such number.
    """
    graph = Graph(compiled, 1, threading.Lock())
    first, sizes = {}, [*range(1, STEADY + 2), TOGETHER // 2, TOGETHER]
    for count in sizes:
        ids = (torch.arange(count * 5).view(count, 5) * 7) % 10 + 1
        prefix = prefill(graph, Tokens(ids[:, :3], torch.ones_like(ids[:, :3])))
        run = OpenVINOPass(graph, prefix, torch.arange(count), 2, None)
        reads = [run.read(position, ids[:, 3 + position], torch.arange(count))[0] for position in range(2)]
        first[count] = torch.stack([prefix.logits[0], *reads])
    others = [count for count in sizes if not first[count].equal(first[TOGETHER])]
    steady = 1 + max(others, default=0)
    return steady if steady <= STEADY else None


class OpenVINOPass:
    """A rollout, a few rows a request, so that those which wait for their position or are done cost little."""

    def __init__(self, graph: Graph, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory | None) -> None:
        given = memory or prefix.memory.select(rows)
        mask = torch.cat([prefix.mask[rows], prefix.mask.new_ones(len(rows), room)], dim=1)
        positions = prefix.mask.sum(-1)[rows, None]  # [B, 1], of the continuation's first token
        self.parts = [
            _Part(_Request(graph), prefix.mask.shape[1], given.select(some), mask[some], positions[some])
            for some in torch.arange(len(rows)).split(TOGETHER)
        ]

    @property
    def memory(self) -> Memory:
        """All that was read, or what was given of rows that read nothing."""
        memory = self.parts[0].memory
        for part in self.parts[1:]:
            memory = memory.join(part.memory, (0, 0))
        return memory

    def read(self, position: int, tokens: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Every part that has any of these rows reads all of its own: the graph's state has them all."""
        owners = rows // TOGETHER
        logits = [
            self.parts[number].read(position, tokens[number * TOGETHER : (number + 1) * TOGETHER])[
                rows[owners == number] - number * TOGETHER
            ]
            for number in owners.unique().tolist()
        ]
        return torch.cat(logits)


class _Part:
    """Some rows of a rollout, in a request of their own."""

    def __init__(
        self, request: _Request, prompt: int, given: Memory, mask: torch.Tensor, positions: torch.Tensor
    ) -> None:
        self.request, self.prompt, self.given, self.mask, self.positions = request, prompt, given, mask, positions
        self.next = -1

    @property
    def memory(self) -> Memory:
        """What was read; where nothing was, what was given."""
        if self.next < 0:
            return self.given
        pairs = zip(self.request.memory.tensors, self.given.tensors, strict=True)
        return Memory([_over(own, before) for own, before in pairs])

    def read(self, position: int, tokens: torch.Tensor) -> torch.Tensor:
        """The logits [B, V] after these tokens at a position; rows that wait read what they have anyway."""
        column = self.prompt + position
        if position != self.next:
            self.given = self.memory
            self.request.memory = Memory([tensor[:, :, :column] for tensor in self.given.tensors])
        self.next = position + 1
        return self.request.read(tokens[:, None], _seen(self.mask[:, : column + 1], 1), self.positions + position)


def _over(tensor: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """A cache [B, heads, columns, d] with what another one has beyond its columns."""
    return torch.cat([tensor, before[:, :, tensor.shape[2] :]], dim=2)


class _Request:
    """One inference request and its states, filled up to the fewest rows with copies of the first."""

    def __init__(self, graph: Graph) -> None:
        self.turn, self.least, self.rows = graph.turn, graph.least_rows, 0
        with self.turn:
            self.request = graph.compiled.create_infer_request()
            self.states = sorted(self.request.query_state(), key=lambda state: int(state.name.rsplit(".", 1)[1]))

    @property
    def memory(self) -> Memory:
        """A copy of the states."""
        with self.turn:
            return Memory([torch.from_numpy(np.array(state.state.data[: self.rows])) for state in self.states])

    @memory.setter
    def memory(self, memory: Memory) -> None:
        with self.turn:
            for state, tensor in zip(self.states, memory.tensors, strict=True):
                state.state = ov.Tensor(_filled_up(tensor, self.least).contiguous().numpy())

    def read(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The logits [B, V] after the last of these tokens."""
        self.rows = len(ids)
        count = self.least if ids.shape[1] < self.least else 1  # a long prompt fills the kernel by itself
        inputs = {
            "input_ids": _filled_up(ids, count).contiguous().numpy(),
            "mask": _filled_up(mask, count).contiguous().numpy(),
            "position_ids": _filled_up(positions, count).contiguous().numpy(),
            "beam_idx": np.arange(max(count, len(ids)), dtype=np.int32),
        }
        with self.turn:
            self.request.infer(inputs)
            return torch.from_numpy(np.array(self.request.get_output_tensor(0).data[: self.rows]))


def _filled_up(tensor: torch.Tensor, least: int) -> torch.Tensor:
    """Rows, with copies of the first up to a number."""
    missing = least - len(tensor)
    return tensor if missing <= 0 else torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])


def _seen(mask: torch.Tensor, new: int) -> torch.Tensor:
    """What the last `new` of the columns [B, m] may look at, as numbers to add: float32 [B, 1, new, m]."""
    columns = torch.arange(mask.shape[1])
    hidden = (columns > columns[-new:, None]) | ~mask[:, None].bool()  # [B, new, m]
    return hidden.to(torch.float32)[:, None] * HIDDEN  # whatever torch's default is while something else is loaded
