"""The loop keeps each row's best, lets satisfied rows leave, and tells its callbacks everything."""

from __future__ import annotations

import pytest
import torch

from slalom.constraints.classifier import Classifier
from slalom.constraints.constraint import Judgement, Part
from slalom.constraints.custom import Custom
from slalom.decoding.dab import DAB
from slalom.decoding.run import Report, Seen, by_score, choice, decode, jointly
from slalom.decoding.sampler import Stop
from slalom.api import SteerableModel
from tests.helpers import draft_of, problem_of

SAMPLER = DAB(weight=2.0, moves=0, top_k=20)
PROMPTS = ["the food was", "we", "an awful day"]


def test_each_rows_best_is_the_best_of_all_its_drafts(llama: SteerableModel, good: Classifier) -> None:
    seen: list[list[float]] = [[], [], []]

    def note(report: Report) -> None:
        for row, score in zip(report.rows, report.seen.judgement.score.tolist(), strict=True):
            seen[row].append(score)

    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=6, callbacks=(note,)).rows
    for row, end in enumerate(ends):
        assert end.best.judgement.score.item() == pytest.approx(max(seen[row]))
        assert end.first.judgement.score.item() == pytest.approx(seen[row][0])
        assert end.steps == 6


def test_satisfied_rows_leave_and_the_others_are_not_disturbed(llama: SteerableModel, good: Classifier) -> None:
    degrees: list[list[float]] = []
    full = decode(
        problem_of(llama, PROMPTS, good),
        SAMPLER,
        [0, 1, 2],
        steps=6,
        callbacks=(lambda report: degrees.append(report.seen.judgement.degree.tolist()),),
    ).rows
    goal = max(max(step) for step in degrees[:3])
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=6, stop=Stop(goal)).rows
    for row, (end, whole) in enumerate(zip(ends, full, strict=True)):
        there = [number for number, step in enumerate(degrees, 1) if step[row] >= goal]
        assert end.steps == (there[0] if there else 6)
        if not there:
            assert end.best.draft.tokens.tolist() == whole.best.draft.tokens.tolist()
    assert min(end.steps for end in ends) <= 3


def test_when_every_row_is_satisfied_the_loop_ends(llama: SteerableModel, good: Classifier) -> None:
    steps: list[int] = []
    decode(
        problem_of(llama, PROMPTS, good),
        SAMPLER,
        [0, 1, 2],
        steps=9,
        stop=Stop(1e-9),
        callbacks=(lambda report: steps.append(report.step),),
    )
    assert steps == [1]


def test_with_patience_a_satisfied_row_goes_on_for_a_while(llama: SteerableModel, good: Classifier) -> None:
    stop = Stop(1e-9, fluent=0.0, patience=3)
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=9, stop=stop).rows
    assert [end.steps for end in ends] == [4, 4, 4]


def test_a_satisfied_row_leaves_at_once_when_it_is_fluent_too(llama: SteerableModel, good: Classifier) -> None:
    stop = Stop(1e-9, fluent=1.0, patience=3)
    ends = decode(problem_of(llama, PROMPTS, good), SAMPLER, [0, 1, 2], steps=9, stop=stop).rows
    assert [end.steps for end in ends] == [1, 1, 1]  # the first draft is as fluent as itself


def seen_of(llama: SteerableModel, score: float, degree: float, fluency: float) -> Seen:
    draft = draft_of(llama, [("we", " liked")])
    draft = draft._replace(log_probs=torch.full_like(draft.log_probs, fluency))
    numbers = torch.tensor([score]), torch.tensor([degree])
    return Seen(draft, Judgement(*numbers, [Part("x", numbers[0], numbers[1], numbers[0] > 0)]))


def test_the_joint_choice_is_the_one_worth_more_of_those_satisfied(llama: SteerableModel) -> None:
    fluent, sure = seen_of(llama, 3.0, 0.95, -1.0), seen_of(llama, 4.5, 0.989, -3.0)
    surer = seen_of(llama, 9.0, 0.999, -3.0)
    unsatisfied = seen_of(llama, -0.1, 0.48, -0.1)
    assert jointly(fluent, sure)
    assert not jointly(sure, fluent)
    assert not jointly(surer, fluent)  # what is more than enough does not pay for fluency
    assert jointly(sure, unsatisfied)
    assert not jointly(unsatisfied, sure)
    assert by_score(sure, fluent)


def test_a_draft_worse_in_both_than_another_is_never_chosen(llama: SteerableModel) -> None:
    for score, fluency in ((-2.0, -1.0), (0.5, -2.0), (4.0, -3.0)):
        worse = seen_of(llama, score, 0.5, fluency)
        better = seen_of(llama, score + 0.1, 0.6, fluency + 0.1)
        assert jointly(better, worse)
        assert not jointly(worse, better)


def test_a_sampler_that_weighs_its_drafts_is_judged_by_the_same_scales(llama: SteerableModel) -> None:
    fluent, sure = seen_of(llama, 1.0, 0.73, -1.0), seen_of(llama, 4.0, 0.98, -3.0)
    assert choice("joint", DAB())(sure, fluent)
    assert choice("joint", DAB(fluency=2.0))(fluent, sure)
    assert choice("joint", DAB(enough=2.0))(fluent, sure)
    assert choice("score", DAB(fluency=2.0))(sure, fluent)


def test_a_text_that_says_nothing_is_never_better_than_one_that_says_something(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " the food")])
    nothing = llama.draft(draft.prompts, draft.tokens, torch.tensor([0]), torch.zeros_like(draft.log_probs))
    assert nothing.texts == [""]
    high, low = (
        Judgement(score, score.sigmoid(), [Part("it", score, None, score > 0)])
        for score in (torch.tensor([9.0]), torch.tensor([-9.0]))
    )
    for better in (by_score, jointly):
        assert not better(Seen(nothing, high), Seen(draft, low))
        assert better(Seen(draft, low), Seen(nothing, high))


def test_a_row_does_not_leave_with_a_text_that_says_nothing(llama: SteerableModel) -> None:
    """Whatever the constraint thinks of silence, the row goes on."""
    wish = Custom(lambda prompt, text: not text.strip(), "silence")
    problem = problem_of(llama, ["the food was"], wish)
    silent = problem._replace(limits=problem.limits._replace(free=True, stops=("",)))
    assert decode(silent, SAMPLER, [0], steps=3, stop=Stop(0.5)).rows[0].steps == 3
