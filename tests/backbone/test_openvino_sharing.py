"""Rollouts of several threads share passes: the same texts as one after the other, in as few passes as the longest."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone import openvino_sharing
from slalom.backbone.openvino_pass import Graph, Piece
from slalom.backbone.passes import counted_passes
from slalom.backbone.rollout import Limits, rollout
from slalom.constraints import Keywords
from slalom.decoding.sampler import Request
from slalom.decoding.scheduler import Scheduler
from tests.conftest import tiny_lm

PROMPTS = ["the food was", "a lovely day by the river with", "we"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteerableModel]:
    """A tiny model on openvino, converted into a cache of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SLALOM_HOME", str(tmp_path_factory.mktemp("home")))
    reference = tiny_lm("llama-tied")
    yield SteerableModel(reference.model, reference.tokenizer, "tiny", engine="openvino")
    patch.undo()


@pytest.fixture
def passes(lm: SteerableModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pieces every pass of the graph has read since."""
    counts: list[int] = []
    read = Graph.read

    def counted(graph: Graph, pieces: list[Piece]) -> torch.Tensor:
        counts.append(len(pieces))
        return read(graph, pieces)

    monkeypatch.setattr(Graph, "read", counted)
    return counts


def written(lm: SteerableModel, prompt: str, length: int) -> list[int]:
    read = lm.read([lm.encode(prompt, length)])
    return rollout(lm, read, torch.tensor([0]), Limits(length)).draft.tokens[0].tolist()


def test_rollouts_side_by_side_write_what_each_writes_alone_in_shared_passes(
    lm: SteerableModel, passes: list[int]
) -> None:
    lengths = [3, 8, 6]
    alone = [written(lm, prompt, length) for prompt, length in zip(PROMPTS, lengths, strict=True)]
    prompts = [lm.read([lm.encode(prompt, 8)]) for prompt in PROMPTS]
    tasks = [
        functools.partial(rollout, lm, read, torch.tensor([0]), Limits(length))
        for read, length in zip(prompts, lengths, strict=True)
    ]
    passes.clear()
    with counted_passes() as counted:
        together = lm.engine.side_by_side(tasks)
    assert [one.draft.tokens[0].tolist() for one in together] == alone
    assert passes == [3, 3, 2, 2, 2, 1, 1]  # the first token of each comes from its prompt's own logits
    assert counted.count == sum(lengths)


def test_a_task_that_fails_or_reads_nothing_keeps_nobody_waiting(lm: SteerableModel) -> None:
    def fail() -> list[int]:
        raise ValueError("broken")

    tasks = [functools.partial(written, lm, PROMPTS[0], 5), fail, functools.partial(written, lm, PROMPTS[1], 5)]
    with pytest.raises(ValueError, match="broken"):
        lm.engine.side_by_side(tasks)
    reading, idle = lm.engine.side_by_side([tasks[0], list])
    assert (reading, idle) == (written(lm, PROMPTS[0], 5), [])


def test_a_pass_that_fails_fails_for_all_who_wait_for_it(lm: SteerableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [lm.read([lm.encode(prompt, 5)]) for prompt in PROMPTS]

    def broken(graph: Graph, pieces: list[Piece]) -> torch.Tensor:
        raise RuntimeError("no memory")

    monkeypatch.setattr(Graph, "read", broken)
    errors: list[str] = []

    def attempt(number: int) -> None:
        try:
            rollout(lm, prompts[number], torch.tensor([0]), Limits(5))
        except RuntimeError as error:
            errors.append(str(error))

    lm.engine.side_by_side([functools.partial(attempt, number) for number in range(3)])
    assert errors == ["no memory"] * 3


def test_more_tasks_than_threads_are_all_done_in_order(lm: SteerableModel) -> None:
    count = 2 * openvino_sharing.MOST + 1
    assert lm.engine.side_by_side([functools.partial(int, number) for number in range(count)]) == list(range(count))


def test_requests_of_different_samplers_share_passes_and_have_the_texts_they_get_alone(
    lm: SteerableModel, passes: list[int]
) -> None:
    wish = Keywords(["river"])
    requests = [
        lm.requests(prompt, wish, length=length, sampler=sampler, steps=3, tell=False)[0]
        for prompt, length, sampler in zip(PROMPTS, (6, 9, 7), ("climb", "none", "dab"), strict=True)
    ]

    def texts(some: list[Request]) -> list[str]:
        scheduler, found = Scheduler(lm), dict[int, str]()
        for request in some:
            scheduler.add(request)
        while scheduler.busy:
            for end in scheduler.step():
                assert end.best is not None
                found[end.ticket] = end.best.draft.texts[0]
        return [found[ticket] for ticket in sorted(found)]

    alone = [text for request in requests for text in texts([request])]
    apart = len(passes)
    passes.clear()
    assert texts(requests) == alone
    assert len(passes) < 0.7 * apart


def test_a_pass_that_failed_for_several_is_tried_again_by_each_alone(
    lm: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = Graph.read, list[int]()

    def broken_once(graph: Graph, pieces: list[Piece]) -> torch.Tensor:
        if len(pieces) > 1 and not failures:
            failures.append(len(pieces))
            raise RuntimeError("no memory")
        return read(graph, pieces)

    wish, scheduler = Keywords(["river"]), Scheduler(lm)
    for prompt, sampler in zip(PROMPTS, ("climb", "none", "dab"), strict=True):
        scheduler.add(lm.requests(prompt, wish, length=6, sampler=sampler, steps=2, tell=False)[0])
    monkeypatch.setattr(Graph, "read", broken_once)
    ends = []
    while scheduler.busy:
        ends += scheduler.step()
    assert failures
    assert [end.error for end in ends] == [None] * 3


def test_nobody_waits_for_a_thread_that_cannot_be_started(lm: SteerableModel, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, started = ThreadPoolExecutor.submit, list[int]()

    def limited(pool: ThreadPoolExecutor, *given: Any) -> Any:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(1)
        return submit(pool, *given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", limited)
    tasks = [functools.partial(written, lm, prompt, 5) for prompt in PROMPTS]
    raised: list[str] = []

    def attempt() -> None:
        try:
            lm.engine.side_by_side(tasks)
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(20)
    assert raised == ["can't start new thread"]
