"""Rollouts of several threads to passes they share: each waits until all have asked for their next logits."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from slalom.backbone.openvino_pass import Graph, Piece

T = TypeVar("T")

MOST = 8  # threads at once


@dataclass
class _Asked:
    """What one thread waits for."""

    pieces: list[Piece]
    logits: torch.Tensor | None = None
    error: Exception | None = None


class SharedPasses:
    """A number of threads that read together: when every one that has not left yet waits, all is read in one pass."""

    def __init__(self, graph: Graph, threads: int) -> None:
        self._graph, self._threads = graph, threads
        self._waiting: list[_Asked] = []
        self._changed = threading.Condition()

    def read(self, pieces: list[Piece]) -> torch.Tensor:
        """The logits that `graph.read` would give: a text's own do not depend on the texts beside it."""
        asked = _Asked(pieces)
        with self._changed:
            self._waiting.append(asked)
            self._read_if_all_wait()
            while asked.logits is None and asked.error is None:
                self._changed.wait()
        if asked.error is not None:
            raise asked.error
        assert asked.logits is not None
        return asked.logits

    @contextmanager
    def joined(self) -> Iterator[None]:
        """While open, rollouts of this thread read together with the others; it must be one of those counted."""
        self._graph.own.read = self.read
        try:
            yield
        finally:
            del self._graph.own.read
            self.leave(1)

    def leave(self, threads: int) -> None:
        """So many of those counted will ask for nothing more."""
        with self._changed:
            self._threads -= threads
            self._read_if_all_wait()

    def _read_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._threads:
            return
        everyone, self._waiting = self._waiting, []
        try:
            logits = self._graph.read_all([piece for asked in everyone for piece in asked.pieces])
            counts = [sum(piece.wanted for piece in asked.pieces) for asked in everyone]
            for asked, own in zip(everyone, logits.split(counts), strict=True):
                asked.logits = own
        except Exception as error:
            for asked in everyone:
                asked.error = error
        self._changed.notify_all()


def side_by_side(graph: Graph, tasks: list[Callable[[], T]]) -> list[T]:
    """What each task returns, in their order; each has a thread of its own, and their rollouts share passes."""
    if len(tasks) > MOST:
        return [*side_by_side(graph, tasks[:MOST]), *side_by_side(graph, tasks[MOST:])]
    if len(tasks) < 2:
        return [task() for task in tasks]
    shared = SharedPasses(graph, len(tasks))
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def run(task: Callable[[], T]) -> T:
        with shared.joined(), torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return task()

    under_way: list[Future[T]] = []
    with ThreadPoolExecutor(len(tasks)) as pool:
        try:
            for task in tasks:
                under_way.append(pool.submit(contextvars.copy_context().run, run, task))
        except BaseException:  # a thread cannot be started, or Ctrl-C: the others must not wait for it
            shared.leave(len(tasks) - len(under_way))
            raise
    return [one.result() for one in under_way]
