"""An LM's cache in blocks that texts share: whoever holds a block keeps it, and nothing of it is copied to go on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch

FIRST = 64  # blocks set aside at first; twice as many whenever they do not suffice


class Block:
    """The keys and values of a few tokens, in all layers; free again when nobody holds it any more."""

    __slots__ = ("_free", "number")

    def __init__(self, number: int, free: list[int]) -> None:
        self.number, self._free = number, free

    def __del__(self) -> None:
        self._free.append(self.number)


class BlockMemory(NamedTuple):
    """Each row's blocks, in the order of its text."""

    tables: list[list[Block]]

    def select(self, rows: list[int] | torch.Tensor) -> BlockMemory:
        """Only these rows, in this order."""
        listed = rows.tolist() if isinstance(rows, torch.Tensor) else rows
        return BlockMemory([self.tables[row] for row in listed])

    def reorder(self, rows: torch.Tensor) -> BlockMemory:
        """The same rows in this order."""
        return self.select(rows)

    def where(self, take: torch.Tensor, other: BlockMemory) -> BlockMemory:
        """These rows where `take` says so, bool [B], the other's elsewhere."""
        pairs = zip(take.tolist(), self.tables, other.tables, strict=True)
        return BlockMemory([own if mine else their for mine, own, their in pairs])

    def join(self, other: BlockMemory, prompts: tuple[int, int]) -> BlockMemory:
        """The rows of both."""
        return BlockMemory(self.tables + other.tables)


class Pool:
    """All blocks of an engine: one array a layer for keys and one for values, inputs of its request."""

    def __init__(self, request: ov.InferRequest, ports: list[Any]) -> None:
        self._request, self._free = request, list[int]()
        self._shapes = {port.any_name: [port.partial_shape[i].get_length() for i in (1, 2, 3)] for port in ports}
        self._types = {port.any_name: port.element_type.to_dtype() for port in ports}
        self._arrays: dict[str, Any] = {}
        self.size: int = next(iter(self._shapes.values()))[1]  # tokens of a block
        self._grow(FIRST)

    def take(self) -> Block:
        """A block that nobody holds."""
        if not self._free:
            self._grow(2 * len(next(iter(self._arrays.values()))))
        return Block(self._free.pop(), self._free)

    def copy(self, pairs: list[tuple[Block, Block]]) -> None:
        """What the first block of each pair holds, into the second."""
        if pairs:
            old, new = ([block.number for block in side] for side in zip(*pairs, strict=True))
            for array in self._arrays.values():
                array[new] = array[old]

    def _grow(self, count: int) -> None:
        """Room for so many blocks, with what those so far hold."""
        before = len(next(iter(self._arrays.values()))) if self._arrays else 0
        for name, shape in self._shapes.items():
            array = np.zeros((count, *shape), self._types[name])
            if before:
                array[:before] = self._arrays[name]
            self._arrays[name] = array
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))
        self._free.extend(range(count - 1, before - 1, -1))
