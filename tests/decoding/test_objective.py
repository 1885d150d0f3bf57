"""Which of two drafts is better: by f, by f and fluency together, or the latest."""

from __future__ import annotations

import torch

from slalom.api import SteerableModel
from slalom.constraints.constraint import PartVerdict, Verdict
from slalom.decoding.objective import Objective, Seen, by_score, jointly, latest
from tests.helpers import draft_of

USUAL = Objective()


def verdict_of(score: float, degree: float) -> Verdict:
    return Verdict(score, degree, [PartVerdict("x", score, degree, score > 0, 1.0)])


def seen_of(llama: SteerableModel, score: float, degree: float, fluency: float) -> Seen:
    draft = draft_of(llama, [("we", " liked")])
    return Seen(draft._replace(log_probs=torch.full_like(draft.log_probs, fluency)), verdict_of(score, degree))


def test_the_joint_choice_is_the_higher_objective_of_those_satisfied(llama: SteerableModel) -> None:
    fluent, sure = seen_of(llama, 3.0, 0.95, -1.0), seen_of(llama, 4.5, 0.989, -3.0)
    surer = seen_of(llama, 9.0, 0.999, -3.0)
    unsatisfied = seen_of(llama, -0.1, 0.48, -0.1)
    assert jointly(fluent, sure, USUAL)
    assert not jointly(sure, fluent, USUAL)
    assert not jointly(surer, fluent, USUAL)  # what is more than enough does not pay for fluency
    assert jointly(sure, unsatisfied, USUAL)
    assert not jointly(unsatisfied, sure, USUAL)
    assert by_score(sure, fluent, USUAL)
    assert latest(unsatisfied, sure, USUAL)


def test_a_draft_worse_in_both_than_another_is_never_chosen(llama: SteerableModel) -> None:
    for score, fluency in ((-2.0, -1.0), (0.5, -2.0), (4.0, -3.0)):
        worse = seen_of(llama, score, 0.5, fluency)
        better = seen_of(llama, score + 0.1, 0.6, fluency + 0.1)
        assert jointly(better, worse, USUAL)
        assert not jointly(worse, better, USUAL)


def test_the_scales_of_the_objective_decide(llama: SteerableModel) -> None:
    fluent, sure = seen_of(llama, 1.0, 0.73, -1.0), seen_of(llama, 4.0, 0.98, -3.0)
    assert jointly(sure, fluent, USUAL)
    assert jointly(fluent, sure, Objective(fluency=2.0))
    assert jointly(fluent, sure, Objective(enough=2.0))
    assert by_score(sure, fluent, Objective(fluency=2.0))


def test_a_weight_decides_between_wishes_and_against_fluency_but_not_what_is_satisfied(llama: SteerableModel) -> None:
    def seen(first: float, second: float, weights: tuple[float, float], fluency: float = -1.0) -> Seen:
        parts = [
            PartVerdict("x", score, None, score > 0, weight)
            for score, weight in zip((first, second), weights, strict=True)
        ]
        return seen_of(llama, 0.0, 0.0, fluency)._replace(verdict=Verdict(0.0, 0.0, parts))

    for weights, better in (((1.0, 2.0), True), ((2.0, 1.0), False)):
        assert jointly(seen(-1.0, 3.0, weights), seen(3.0, -1.0, weights), USUAL) == better
    for weight, better in ((1.0, False), (3.0, True)):
        sure, fluent = seen(3.0, 4.0, (1.0, weight), -4.0), seen(3.0, 2.0, (1.0, weight), -1.0)
        assert jointly(sure, fluent, USUAL) == better
        assert jointly(seen(1.0, 1.0, (1.0, weight)), seen(9.0, -0.1, (1.0, weight)), USUAL)


def test_a_text_that_says_nothing_is_never_better_than_one_that_says_something(llama: SteerableModel) -> None:
    draft = draft_of(llama, [("we", " the food")])
    nothing = llama.draft(draft.prompts, draft.tokens, torch.tensor([0]), torch.zeros_like(draft.log_probs))
    assert nothing.texts == [""]
    high, low = verdict_of(9.0, 1.0), verdict_of(-9.0, 0.0)
    for better in (by_score, jointly):
        assert not better(Seen(nothing, high), Seen(draft, low), USUAL)
        assert better(Seen(draft, low), Seen(nothing, high), USUAL)


def test_a_told_text_that_talks_about_its_task_is_worth_nothing(llama: SteerableModel) -> None:
    plain, told = seen_of(llama, 1.0, 0.7, -1.0), seen_of(llama, 4.0, 0.98, -0.5)
    prompt = told.draft.prompts[0]._replace(untold_ids=(1,))
    talk = [" soup. I'm not sure if you're referring to it"]
    leaking = told._replace(draft=told.draft._replace(prompts=[prompt], texts=talk))
    untold = told._replace(draft=told.draft._replace(texts=talk))
    asked = told._replace(draft=told.draft._replace(prompts=[prompt._replace(asked="What?")], texts=talk))
    assert leaking.worthless
    assert not untold.worthless  # nobody told it anything
    assert not asked.worthless  # an answer may talk of what was asked
    assert jointly(plain, leaking, USUAL)
    assert by_score(plain, leaking, USUAL)
