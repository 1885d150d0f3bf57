"""Rows join and leave between drafts, each as if it were alone; each row's best is kept; a bad row fails alone."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import Limits, Prompts, Rollout, rollout
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.constraints.constraint import Constraint
from slalom.constraints.custom import Custom
from slalom.decoding.climb import Climb
from slalom.decoding.dab import DAB
from slalom.decoding.none import Unsteered
from slalom.decoding.sampler import Preset, Request, Sampler, Stop
from slalom.decoding.scheduler import Finished, RowReport, Scheduler, _Batch
from slalom.errors import SlalomError
from slalom.types import Prompt
from tests.helpers import decode, problem_of, unsteered

SAMPLER = DAB(weight=2.0, top_k=20)
PROMPTS = ["the food was", "we", "an awful day"]


def test_each_rows_best_is_the_best_of_all_its_drafts(llama: SteerableModel, good: Classifier) -> None:
    seen: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def note(rows: list[RowReport]) -> None:
        for row in rows:
            seen[row.ticket].append(row.seen.verdict.score)

    for end in decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=6, callbacks=(note,)):
        assert end.best.verdict.score == max(seen[end.ticket])
        assert end.first.verdict.score == seen[end.ticket][0]
        assert end.drafts == len(seen[end.ticket]) == 6


def test_satisfied_rows_leave_and_the_others_are_not_disturbed(llama: SteerableModel, good: Classifier) -> None:
    degrees: dict[int, list[float]] = {0: [], 1: [], 2: []}

    def note(rows: list[RowReport]) -> None:
        for row in rows:
            degrees[row.ticket].append(row.seen.verdict.degree)

    full = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=6, callbacks=(note,))
    goal = max(max(own[:3]) for own in degrees.values())
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=6, stop=Stop(goal))
    for row, (end, whole) in enumerate(zip(ends, full, strict=True)):
        there = [number for number, degree in enumerate(degrees[row], 1) if degree >= goal]
        assert end.drafts == (there[0] if there else 6)
        if not there:
            assert end.best.draft.tokens.tolist() == whole.best.draft.tokens.tolist()
    assert min(end.drafts for end in ends) <= 3


def test_with_patience_a_satisfied_row_goes_on_for_a_while(llama: SteerableModel, good: Classifier) -> None:
    stop = Stop(1e-9, fluent=0.0, patience=3)
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=9, stop=stop)
    assert [end.drafts for end in ends] == [4, 4, 4]


def test_a_satisfied_row_leaves_at_once_when_it_is_fluent_too(llama: SteerableModel, good: Classifier) -> None:
    stop = Stop(1e-9, fluent=1.0, patience=3)
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=9, stop=stop)
    assert [end.drafts for end in ends] == [1, 1, 1]  # the first draft is as fluent as itself


def test_a_row_does_not_leave_with_a_text_that_says_nothing(llama: SteerableModel) -> None:
    """Whatever the constraint thinks of silence, the row goes on."""
    wish = Custom(lambda prompt, text: not text.strip(), "silence")
    problem = problem_of(llama, ["the food was"], wish)
    request = problem.requests[0]
    silent = problem._replace(requests=[request._replace(limits=request.limits._replace(free=True, stops=("",)))])
    assert decode(silent, SAMPLER, [0], steps=3, stop=Stop(0.5))[0].drafts == 3


# Any mix of requests.

SAMPLERS = {"climb": Climb(top_k=20, looks=4, width=2), "dab": SAMPLER, "none": Unsteered()}


def mixed(lm: SteerableModel, good: Classifier, sampler: Sampler) -> list[Request]:
    """Rows of different wishes, lengths, rules, ways of drawing, and steps."""
    bad = Classifier(good.model, "bad", good.tokenizer)
    rows: list[tuple[str, Constraint, Limits, float, int]] = [
        ("the food was", good, Limits(5), 0.0, 7),
        ("a lovely day by the river with", bad, Limits(12), 0.0, 4),
        ("we", Keywords(["soup"]), Limits(8, free=True), 0.7, 5),
        ("an awful day", good + Keywords(["soup"]), Limits(9, repetition_penalty=1.0), 0.0, 6),
        ("we liked", good + Avoid(["the"]), Limits(7), 1.0, 3),
    ]
    return [
        Request(
            lm.encode(prompt, limits.length),
            seed,
            wish,
            limits,
            Preset(sampler, steps, Stop(0.999), "joint", temperature),
        )
        for seed, (prompt, wish, limits, temperature, steps) in enumerate(rows)
    ]


def finished(scheduler: Scheduler) -> dict[int, Finished]:
    found: dict[int, Finished] = {}
    while scheduler.busy:
        found.update((end.ticket, end) for end in scheduler.step())
    return found


def text_of(end: Finished) -> tuple[str, int]:
    assert end.best is not None
    return end.best.draft.texts[0], end.drafts


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_a_row_gives_the_same_text_alone_in_a_batch_and_when_it_joins_late(
    lm: SteerableModel, good: Classifier, sampler: Sampler
) -> None:
    requests = mixed(lm, good, sampler)
    alone = []
    for request in requests:
        scheduler = Scheduler(lm)
        scheduler.add(request)
        alone.append(text_of(finished(scheduler)[0]))

    together = Scheduler(lm)
    for request in requests:
        together.add(request)
    assert [text_of(end) for _, end in sorted(finished(together).items())] == alone

    late, found = Scheduler(lm), {}
    for request in requests:
        late.add(request)
        found.update((end.ticket, end) for end in late.step())
    found.update(finished(late))
    assert [text_of(end) for _, end in sorted(found.items())] == alone


def test_a_row_that_joins_late_is_begun_in_the_same_passes_as_the_others_go_on(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts: list[int] = []

    def counted(lm: SteerableModel, prompts: Prompts, rows: torch.Tensor, *args: Any) -> Rollout:
        rollouts.append(len(rows))
        return rollout(lm, prompts, rows, *args)

    monkeypatch.setattr("slalom.decoding.climb.rollout", counted)
    first, second, *_ = mixed(llama, good, SAMPLERS["climb"])
    scheduler = Scheduler(llama)
    for request in (first, second):
        scheduler.add(request._replace(seed=5))
        scheduler.step()
    assert rollouts == [2, 4]  # the first row's drafts; then its two moves and the newcomer's first drafts


@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_rows_that_find_no_room_wait_and_are_the_same_texts(
    llama: SteerableModel, good: Classifier, sampler: Sampler
) -> None:
    requests = mixed(llama, good, sampler)
    wide, narrow = Scheduler(llama), Scheduler(llama, tokens=40)
    working: list[int] = []
    narrow.callbacks = (lambda rows: working.append(len(rows)),)
    for request in requests:
        wide.add(request)
        narrow.add(request)
    assert [text_of(end) for end in finished(wide).values()] != []
    assert {ticket: text_of(end) for ticket, end in finished(narrow).items()} == {
        ticket: text_of(end) for ticket, end in finished(again(wide, requests)).items()
    }
    assert max(working) < len(requests)


def again(scheduler: Scheduler, requests: list[Request]) -> Scheduler:
    fresh = Scheduler(scheduler.lm)
    for request in requests:
        fresh.add(request)
    return fresh


def test_samplers_of_all_kinds_share_a_scheduler(llama: SteerableModel, good: Classifier) -> None:
    scheduler = Scheduler(llama)
    for sampler in SAMPLERS.values():
        for request in mixed(llama, good, sampler):
            scheduler.add(request)
    assert sorted(finished(scheduler)) == list(range(15))


def test_a_bad_row_fails_alone(llama: SteerableModel, good: Classifier) -> None:
    calls = 0

    def breaks(prompt: str, text: str) -> float:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise ZeroDivisionError("the function has had enough")
        return 0.0

    sampler = Climb(top_k=20, looks=4, width=1)
    requests = mixed(llama, good, sampler)[:2]
    scheduler = Scheduler(llama)
    for request in requests:
        scheduler.add(request)
    scheduler.add(requests[0]._replace(constraint=Custom(breaks, "breaks")))
    found = finished(scheduler)
    assert isinstance(found[2].error, ZeroDivisionError)
    assert found[2].best is None
    assert [text_of(found[ticket]) for ticket in (0, 1)] == [
        text_of(end) for _, end in sorted(finished(again(scheduler, requests)).items())
    ]


def test_a_row_that_cannot_begin_beside_others_fails_alone(llama: SteerableModel, good: Classifier) -> None:
    class Breaks(Custom):
        """Cannot say which tokens it wants."""

        def wanted(self, vocabulary: Vocabulary) -> list[int]:
            raise ZeroDivisionError("nothing is wanted")

    first, second, *_ = mixed(llama, good, SAMPLERS["climb"])
    scheduler = Scheduler(llama)
    scheduler.add(first)
    found = {end.ticket: end for end in scheduler.step()}
    scheduler.add(first._replace(constraint=Breaks(lambda prompt, text: True, "breaks")))
    scheduler.add(second)
    found |= finished(scheduler)
    assert isinstance(found[1].error, ZeroDivisionError)
    assert [text_of(found[ticket]) for ticket in (0, 2)] == [
        text_of(end) for _, end in sorted(finished(again(scheduler, [first, second])).items())
    ]


def test_a_row_that_fails_between_its_blocks_fails_alone(llama: SteerableModel, good: Classifier) -> None:
    class Breaks(Custom):
        """Cannot say what is left to ask."""

        def remaining(self, prompt: Prompt, blocks: int) -> Constraint | None:
            if prompt.begun:
                raise ZeroDivisionError("nothing is left")
            return self

    scheduler = Scheduler(llama)
    long = llama.requests("we", Breaks(lambda prompt, text: True, "breaks"), length=40, tell=False)
    other = llama.requests("the food was", good, length=5, steps=4, tell=False)
    for request in long + other:
        scheduler.add(request)
    found = finished(scheduler)
    assert isinstance(found[0].error, ZeroDivisionError)
    assert found[1].error is None


def test_a_prompt_that_cannot_be_read_fails_alone(llama: SteerableModel, good: Classifier) -> None:
    sampler = Climb(top_k=20, looks=4, width=1)
    requests = mixed(llama, good, sampler)[:2]
    beyond = requests[0].prompt._replace(ids=(10**6,))  # no such token
    scheduler = Scheduler(llama)
    for request in [requests[0]._replace(prompt=beyond), *requests]:
        scheduler.add(request)
    found = finished(scheduler)
    assert found[0].error is not None
    assert [found[ticket].error for ticket in (1, 2)] == [None, None]


def test_steer_raises_what_a_row_fails_with(llama: SteerableModel) -> None:
    def breaks(prompt: str, text: str) -> float:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        llama.steer(["we", "the food"], Custom(breaks, "breaks"), length=5)


def test_a_cancelled_row_is_never_finished_and_disturbs_nobody(llama: SteerableModel, good: Classifier) -> None:
    requests = mixed(llama, good, Climb(top_k=20, looks=4, width=2))
    scheduler = Scheduler(llama)
    tickets = [scheduler.add(request) for request in requests]
    found = {end.ticket: end for end in scheduler.step()}
    scheduler.cancel(tickets[1])
    scheduler.cancel(999)
    found |= finished(scheduler)
    assert tickets[1] not in found
    rest = [requests[number] for number in (0, 2, 3, 4)]
    assert [text_of(found[ticket]) for ticket in (0, 2, 3, 4)] == [
        text_of(end) for _, end in sorted(finished(again(scheduler, rest)).items())
    ]


def test_a_wish_that_cannot_be_fulfilled_is_refused_when_it_is_added(llama: SteerableModel) -> None:
    scheduler = Scheduler(llama)
    request = problem_of(llama, ["we"], Keywords(["soup"]), length=8).requests[0]
    with pytest.raises(SlalomError, match="must appear and must not"):
        scheduler.add(request._replace(constraint=Keywords(["soup"]) + Avoid(["soup"])))
    assert not scheduler.busy


def test_prompts_that_join_are_continued_as_if_they_had_been_read_together(llama: SteerableModel) -> None:
    texts = ["we", "a lovely day by the river with", "the food"]
    prompts = [llama.encode(text, 4) for text in texts]
    parts = [llama.read([prompt]).prefix for prompt in prompts]
    joined = parts[0].join(parts[1]).join(parts[2])
    whole = llama.read(prompts).prefix
    assert torch.equal(joined.mask, whole.mask)
    assert torch.allclose(joined.logits, whole.logits, atol=1e-5)


def test_rows_of_different_wishes_and_lengths_are_read_by_their_encoder_together(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two labels of one classifier, one of them in a sum, at two lengths: one call of it, and the scores of each."""
    wishes: list[Classifier] = [Classifier(good.model, label, good.tokenizer) for label in ("good", "bad")]
    calls: list[int] = []
    for wish in wishes:
        outputs = wish._outputs

        def counted(inputs: dict[str, torch.Tensor], outputs: Any = outputs) -> torch.Tensor:
            calls.append(len(inputs["input_ids"]))
            return outputs(inputs)

        monkeypatch.setattr(wish, "ours", True)
        monkeypatch.setattr(wish, "_fast", None)
        monkeypatch.setattr(wish, "_outputs", counted)
    rows = [(wishes[0], 6), (wishes[1], 8), (wishes[1] + Keywords(["soup"]), 8), (wishes[0], 8)]
    problem = problem_of(llama, [*PROMPTS, "the food"], good)
    requests = [
        one._replace(constraint=wish, limits=Limits(n)) for one, (wish, n) in zip(problem.requests, rows, strict=True)
    ]
    problem = problem._replace(requests=requests)
    draft = unsteered(llama, [*PROMPTS, "the food"], 6).draft
    verdicts = problem.judge(draft)
    assert calls == [4]
    expected = [(wish if isinstance(wish, Classifier) else wish.terms()[0][1]).score(draft) for wish, _ in rows]
    found = [verdict.parts[0].score for verdict in verdicts]
    assert found == pytest.approx([scores[row].item() for row, scores in enumerate(expected)], abs=1e-5)


def test_an_engine_that_pads_gives_every_row_the_room_of_the_widest(
    llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def most_at_once(pads: bool) -> int:
        monkeypatch.setattr(llama.engine, "pads", pads)
        scheduler = Scheduler(llama, tokens=400)
        settings = Preset(Climb(top_k=20, looks=4, width=2), 4, None, "joint")
        for prompt in ["the food was good " * 5, *["we"] * 12]:
            scheduler.add(Request(llama.encode(prompt, 8), 0, Keywords(["soup"]), Limits(8), settings))
        most = 0
        while scheduler.busy:
            scheduler.step()
            most = max(most, sum(len(batch.rows) for batch in scheduler._batches))
        return most

    assert most_at_once(pads=True) < most_at_once(pads=False)


def test_rows_that_cannot_become_one_batch_go_on_apart(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = mixed(llama, good, SAMPLERS["climb"])[:2]
    alone = [text_of(found) for request in requests for found in finished(again(Scheduler(llama), [request])).values()]

    def full(self: Any, other: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(_Batch, "join", full)
    scheduler = Scheduler(llama)
    scheduler.add(requests[0])
    found = {end.ticket: end for end in scheduler.step()}
    scheduler.add(requests[1])
    found |= finished(scheduler)
    assert [text_of(found[ticket]) for ticket in sorted(found)] == alone


def test_what_constraints_forbid_is_not_kept_for_ever(llama: SteerableModel) -> None:
    scheduler = Scheduler(llama)
    settings = Preset(Unsteered(), 1)
    first = Avoid(["soup"])
    gone = weakref.ref(first)
    scheduler.cancel(scheduler.add(Request(llama.encode("we", 4), 0, first, Limits(4), settings)))
    del first
    for number in range(300):
        wish = Avoid([f"rain{number}"])
        scheduler.cancel(scheduler.add(Request(llama.encode("we", 4), 0, wish, Limits(4), settings)))
    gc.collect()
    assert gone() is None
