"""COLD moves logits down its energy, and reads off them what the LM finds likely."""

from __future__ import annotations

import functools

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import rollout
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding.cold import COLD, Opinion, adam
from slalom.decoding.drawing import Drawing
from slalom.decoding.randomness import Rng
from slalom.decoding.relaxation import entries_at
from slalom.decoding.sampler import Problem
from slalom.decoding.scheduler import RowReport
from slalom.types import Draft
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, limited, problem_of, unsteered

PROMPTS = ["the food was", "a lovely day by the river with", "we"]
SMALL = COLD(top_k=10, inner=4)


def with_drawing(problem: Problem) -> Problem:
    rng = Rng.from_seeds(list(range(len(problem.rows))), problem.lm.device)
    each = torch.ones(len(problem.rows))
    return problem._replace(drawing=Drawing(each, 0.9 * each, rng))


@pytest.mark.parametrize("start", ["soft", "drawn"])
def test_with_one_favourite_and_no_keywords_it_is_greedy_decoding(
    lm: SteerableModel, good: Classifier, start: str
) -> None:
    drafts: list[list[list[int]]] = []
    problem = with_drawing(problem_of(lm, PROMPTS, good))
    sampler = COLD(top_k=1, inner=3, start=start)
    note = lambda rows: drafts.append([row.seen.draft.tokens[0].tolist() for row in rows])  # noqa: E731
    decode(problem, sampler, [0, 1, 2], steps=3, callbacks=(note,))
    assert drafts == [unsteered(lm, PROMPTS).draft.tokens.tolist()] * 3


def test_its_gradient_is_that_of_the_energy(lm: SteerableModel) -> None:
    constraint = table_classifier(lm)
    problem, sampler = problem_of(lm, PROMPTS[:1], constraint), COLD(top_k=10, weight=0.6, tau=2.0)
    logits = torch.randn(1, 8, lm.vocabulary.size)
    opinion = sampler._ask(problem, logits.argmax(-1))
    moved = logits.clone().requires_grad_()
    fluency = -(opinion.targets * moved.log_softmax(-1).gather(-1, opinion.candidates)).sum(-1).mean(-1)
    shares = (moved.gather(-1, opinion.candidates) / 2.0).softmax(-1)
    f = (shares * opinion.entries).sum((1, 2))  # its gradient is the straight-through one
    (expected,) = torch.autograd.grad((0.4 * fluency - 0.6 * f).sum(), moved)
    assert torch.allclose(sampler._gradient(logits, opinion), expected, atol=1e-6)


def test_what_it_believes_of_a_text_is_what_the_lm_says(lm: SteerableModel, good: Classifier) -> None:
    draft = unsteered(lm, PROMPTS, repetition_penalty=1.0).draft
    problem = problem_of(lm, PROMPTS, good)
    problem = limited(problem, repetition_penalty=1.0)
    opinion = SMALL._ask(problem, draft.tokens)
    assert opinion.candidates[..., 0].tolist() == draft.tokens.tolist()  # greedy: the token is the LM's favourite
    ratios = (opinion.targets[..., 0] / opinion.targets.sum(-1)).log()
    assert (ratios >= draft.log_probs - 1e-4).all()  # the same logits, among fewer tokens


def test_the_direction_is_torchs_own_adam() -> None:
    gradients = torch.randn(5, 3, 4)
    place = torch.zeros(3, 4, requires_grad=True)
    optimiser = torch.optim.Adam([place], lr=0.1)
    own, mean, square = torch.zeros(3, 4), torch.zeros(3, 4), torch.zeros(3, 4)
    for time, gradient in enumerate(gradients, 1):
        place.grad = gradient.clone()
        optimiser.step()
        own -= 0.1 * adam(gradient, mean, square, time)
    assert torch.allclose(own, place, atol=1e-6)


def test_the_noise_falls_as_in_the_original() -> None:
    lexical = COLD(anneal="lexical", noise=2.0)
    assert [lexical._noise(t) for t in (0, 49, 50, 500, 1000, 1500)] == pytest.approx([2, 2, 1, 0.2, 0.1, 0.02])
    assert [COLD(noise=1, pace=4)._noise(t) for t in (0, 12, 13, 50, 125)] == pytest.approx([0.5, 0.5, 0.1, 0.05, 0.01])


def test_a_drawn_start_is_the_drawn_text(lm: SteerableModel, good: Classifier) -> None:
    problem = with_drawing(problem_of(lm, PROMPTS, good))
    sampler = COLD(top_k=lm.vocabulary.size, start="drawn")
    draft = sampler.read(problem, sampler.init(problem, Rng.from_seeds([0, 1, 2], lm.device)))
    drawn = rollout(lm, problem.prompts, problem.rows, problem.limits, draw=problem.draw).draft
    assert draft.tokens.tolist() == drawn.tokens.tolist()
    assert torch.allclose(draft.log_probs, lm.log_probs(draft), atol=1e-4)


def test_the_lm_is_asked_only_of_rows_whose_tokens_changed(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS, good)
    logits = torch.randn(3, 8, llama.vocabulary.size)
    last = SMALL._ask(problem, logits.argmax(-1))
    best = last.candidates.gather(-1, logits.gather(-1, last.candidates).argmax(-1, keepdim=True))[..., 0]
    same = last._replace(tokens=best)
    assert SMALL._asked_again(problem, logits, same) is same
    stale = same._replace(tokens=torch.where(torch.tensor([[False], [True], [False]]), 0, best))
    again = SMALL._asked_again(problem, logits, stale)
    assert again.targets[0].tolist() == stale.targets[0].tolist()
    fresh: Opinion = SMALL._ask(problem.select([1]), best[1:2])
    assert torch.allclose(again.targets[1], fresh.targets[0], atol=1e-5)


def test_fs_part_of_the_energy_raises_f(lm: SteerableModel) -> None:
    constraint = table_classifier(lm)
    problem = problem_of(lm, PROMPTS, constraint)
    rng = Rng.from_seeds([0, 1, 2], lm.device)
    scores = []
    for weight in (0.0, 1.0):
        sampler = COLD(weight=weight, top_k=30, noise=0.0, inner=30)
        state = sampler.step(problem, sampler.init(problem, rng), rng)
        scores.append(constraint.score(sampler.read(problem, state)).sum().item())
    assert scores[1] > scores[0]


def test_keywords_land(lm: SteerableModel) -> None:
    wish = Keywords(["soup", "river"], mode="all")
    ends = decode(problem_of(lm, PROMPTS, wish), COLD(top_k=5, inner=20, pace=8), [0, 1, 2], steps=4)
    assert sum(end.best.verdict.satisfied for end in ends) >= 2


def test_rows_that_leave_do_not_disturb_the_others(llama: SteerableModel, good: Classifier) -> None:
    problem, rng = problem_of(llama, PROMPTS, good), Rng.from_seeds([0, 1, 2], llama.device)
    state = SMALL.step(problem, SMALL.init(problem, rng), rng.fold(2))
    whole = SMALL.step(problem, state, rng.fold(3))
    rest = [0, 2]
    part = SMALL.step(problem.select(rest), state.select(rest), rng.select(rest).fold(3))
    assert part.draft.tokens.tolist() == whole.draft.tokens[rest].tolist()
    assert torch.allclose(part.logits, whole.logits[rest], atol=1e-3)


def test_nothing_forbidden_is_ever_written(lm: SteerableModel, good: Classifier) -> None:
    avoid = Avoid(unsteered(lm, PROMPTS).draft.texts[0].split()[:2])
    texts: list[tuple[str, str]] = []

    def note(rows: list[RowReport]) -> None:
        draft = functools.reduce(Draft.join, [row.seen.draft for row in rows])
        texts.extend((prompt.text, text) for prompt, text in zip(draft.prompts, draft.texts, strict=True))

    decode(problem_of(lm, PROMPTS, good + avoid), SMALL, [0, 1, 2], steps=3, callbacks=(note,))
    assert not any(avoid.found(prompt, text) for prompt, text in texts)


def test_a_text_may_end_early_in_free_length(lm: SteerableModel, good: Classifier) -> None:
    out = lm.steer(PROMPTS, good, sampler="cold", length=8, free=True, steps=2, knobs={"inner": 3, "top_k": 200})
    assert len(out.texts) == 3


def test_the_gradient_at_one_hots_is_that_of_finite_differences(lm: SteerableModel) -> None:
    constraint = table_classifier(lm)
    draft = unsteered(lm, ["the food was"]).draft
    entries = entries_at(constraint, lm.vocabulary, draft.prompts, draft.tokens)
    candidates = torch.arange(300, 320).expand(1, 8, -1)
    assert torch.allclose(entries.gather(-1, candidates), constraint.candidate_scores(draft, candidates), atol=1e-4)


def test_no_parameter_ever_gets_a_gradient(lm: SteerableModel, good: Classifier) -> None:
    lm.steer("the food", good, sampler="cold", steps=2, length=6, knobs={"inner": 2})
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    assert all(parameter.grad is None for parameter in good.model.parameters())


def test_the_authors_preset_has_their_number_of_iterations(good: Classifier) -> None:
    authors = COLD.presets(good)["authors"]
    assert (authors.steps - 1) * authors.sampler.inner == 2000  # type: ignore[attr-defined]
