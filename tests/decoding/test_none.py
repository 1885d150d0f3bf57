"""The LM alone: its greedy text, or independent samples of it."""

from __future__ import annotations

from slalom.api import SteerableModel
from slalom.constraints.classifier import Classifier
from slalom.decoding.none import Unsteered
from tests.helpers import decode, problem_of, unsteered


def test_greedy_text_is_the_lms_own_and_stays_so(lm: SteerableModel, good: Classifier) -> None:
    prompts = ["the food was", "we"]
    (first, second) = decode(problem_of(lm, prompts, good), Unsteered(), [0, 1], steps=3)
    expected = unsteered(lm, prompts).draft
    assert [first.best.draft.texts[0], second.best.draft.texts[0]] == expected.texts


def test_every_step_draws_another_sample(llama: SteerableModel, good: Classifier) -> None:
    texts: list[str] = []
    decode(
        problem_of(llama, ["we"], good, drawn=[5]),
        Unsteered(),
        [5],
        steps=4,
        callbacks=(lambda rows: texts.extend(row.seen.draft.texts[0] for row in rows),),
    )
    assert len(set(texts)) == 4


def test_the_command_and_steer_know_it(llama: SteerableModel, good: Classifier) -> None:
    out = llama.steer("the food was", good, sampler="none", length=8)
    assert out.sampler == "none"
    assert out.rows[0].steps == 1
    assert out.texts == unsteered(llama, ["the food was"]).draft.texts
