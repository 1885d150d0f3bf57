"""BOLT tunes its bias through the whole decoding, a row at a time, and is plain decoding without one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from slalom.api import SteerableModel
from slalom.backbone.graph import GraphPass, input_table, output_table
from slalom.backbone.rollout import rollout
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding.bias import centred_norm
from slalom.decoding.bolt import BOLT, BOLTState, Learned, NormalisedBOLT
from slalom.decoding.drawing import Drawing
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Problem
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, limited, problem_of, unsteered

PROMPTS = ["the food was", "a lovely day by the river with", "we"]
STILL = BOLT(start=0.0, noise=0.0)
KINDS = (BOLT, NormalisedBOLT)


def rng_of(seeds: list[int]) -> Rng:
    return Rng.from_seeds(seeds, torch.device("cpu"))


def steps_of(sampler: BOLT, problem: Problem, count: int, seeds: list[int] | None = None) -> list[BOLTState]:
    """The first state and those after each of so many steps."""
    rng = rng_of(seeds or list(range(len(problem.rows))))
    states = [sampler.init(problem, rng.fold(1))]
    for step in range(2, count + 2):
        states.append(sampler.step(problem, states[-1], rng.fold(step)))
    return states


@pytest.mark.parametrize("sampler", [STILL, NormalisedBOLT(start=0.0), BOLT(weight=0.0), NormalisedBOLT(weight=0.0)])
def test_without_a_bias_it_is_greedy_decoding(lm: SteerableModel, good: Classifier, sampler: BOLT) -> None:
    expected = unsteered(lm, PROMPTS).draft
    for state in steps_of(sampler, problem_of(lm, PROMPTS, good), 1):
        assert state.latest.tokens.tolist() == expected.tokens.tolist()
        assert torch.allclose(state.latest.log_probs, expected.log_probs, atol=1e-4)


def test_without_a_bias_it_draws_as_any_rollout_draws(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    each = torch.ones(3)
    problem = problem._replace(drawing=Drawing(1.5 * each, 0.9 * each, rng_of([4, 5, 6])))
    expected = rollout(lm, problem.prompts, problem.rows, problem.limits, draw=problem.draw).draft.tokens
    assert expected.tolist() != unsteered(lm, PROMPTS).draft.tokens.tolist()
    assert [state.latest.tokens.tolist() for state in steps_of(STILL, problem, 1)] == [expected.tolist()] * 2


def test_log_probabilities_are_the_unbiased_models(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    draft = steps_of(BOLT(start=1.0), problem, 1)[-1].latest
    assert draft.tokens.tolist() != unsteered(lm, PROMPTS).draft.tokens.tolist()
    assert torch.allclose(draft.log_probs, lm.log_probs(draft), atol=1e-4)


def test_the_likelihoods_gradient_is_that_of_a_second_pass(lm: SteerableModel, good: Classifier) -> None:
    problem, sampler = problem_of(lm, PROMPTS, good), BOLT(start=1.0)
    state = sampler.init(problem, rng_of([0, 1, 2]))
    bias, weights = state.bias.value.clone().requires_grad_(), state.weights.value.clone().requires_grad_()
    written = sampler._write(problem, state, bias, weights)
    logits = GraphPass(lm.model, state.prefix).read(written.mixtures[:, :-1] @ input_table(lm.model))
    second = logits.log_softmax(-1).gather(-1, written.draft.tokens[:, 1:, None])
    own, expected = (
        torch.autograd.grad(one.sum(), (bias, weights), retain_graph=True) for one in (written.log_probs, second)
    )
    assert own[0][:, :-1].abs().amin((1, 2)).min() > 0
    for mine, their in zip(own, expected, strict=True):
        assert torch.allclose(mine, their, atol=1e-4 * their.abs().max().item())


def test_the_update_is_that_of_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(2, 3, generator=generator)
    parameter = torch.nn.Parameter(value.clone())
    optimiser, own = torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.2, eps=1e-6), Learned.new(value)
    for count in range(1, 6):
        parameter.grad = torch.randn(2, 3, generator=generator)
        own = own.updated(parameter.grad.clone(), 0.1, 0.2, count)
        optimiser.step()
        assert torch.allclose(own.value, parameter, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_falls(llama: SteerableModel, kind: type[BOLT]) -> None:
    constraint = table_classifier(llama)  # its relaxed score at one-hots is its score
    sampler = kind(rate=0.1, noise=0.0)
    states = steps_of(sampler, problem_of(llama, [*PROMPTS, "an awful day"], constraint, length=6), 10)
    drafts = [state.latest for state in states[1:]]
    energy = torch.stack([F.softplus(-constraint.score(one)) + 0.1 * one.perplexity.log() for one in drafts]).mean(-1)
    assert energy[-3:].mean() < energy[:3].mean() - 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_no_parameter_ever_gets_a_gradient(lm: SteerableModel, good: Classifier, kind: type[BOLT]) -> None:
    before = [parameter.requires_grad for parameter in lm.model.parameters()]
    decode(problem_of(lm, PROMPTS, good + Keywords(["soup"])), kind(), [0, 1, 2], steps=3)
    assert all(parameter.grad is None for parameter in (*lm.model.parameters(), *good.model.parameters()))
    assert [parameter.requires_grad for parameter in lm.model.parameters()] == before


def test_a_step_is_one_update_with_one_backward_pass(
    llama: SteerableModel, good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args: calls.append(1) or original(*args))  # type: ignore[func-returns-value]
    before, after = steps_of(BOLT(noise=0.0), problem_of(llama, PROMPTS, good), 1)
    assert len(calls) == 1
    moved = (after.bias.value - before.bias.value).abs()
    assert (moved.amax((1, 2)) > 0.5 * BOLT().rate).all()
    assert ((after.weights.value - before.weights.value).abs().amax(-1) > 0.5 * BOLT().rate).all()


def test_accumulated_gradients_are_the_sum_of_all(llama: SteerableModel, good: Classifier) -> None:
    problem, sampler = problem_of(llama, PROMPTS, good), BOLT(rate=0.1)
    _, first, second = steps_of(sampler, problem, 2)
    _, _, summed = steps_of(replace(sampler, accumulate=True), problem, 2)
    assert torch.allclose(summed.bias.gradient, first.bias.gradient + second.bias.gradient, atol=1e-6)
    assert torch.allclose(summed.weights.gradient, first.weights.gradient + second.weights.gradient, atol=1e-6)
    assert not torch.allclose(summed.bias.value, second.bias.value, atol=1e-3)


@pytest.mark.parametrize(("schedule", "expected"), [("constant", [1.0] * 4), ("increasing", [0, 0.25, 0.5, 0.75])])
def test_fixed_weights_follow_their_schedule_and_stay(
    llama: SteerableModel, good: Classifier, schedule: str, expected: list[float]
) -> None:
    for state in steps_of(BOLT(schedule=schedule), problem_of(llama, ["we"], good, length=4), 2):
        assert state.weights.value.tolist() == [expected]


def test_one_unit_of_bias_spreads_like_the_logits(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good, length=24)
    state = BOLT(start=1.0).init(problem, rng_of([0, 1, 2]))
    vectors = state.unit[:, None, None] * state.bias.value @ output_table(lm.model).T
    spread = vectors.var(-1).mean(-1).sqrt()
    assert torch.allclose(spread, state.prefix.logits.std(-1), rtol=0.25)
    assert BOLT(units="raw").init(problem, rng_of([0, 1, 2])).unit.tolist() == [1.0] * 3


def test_noise_and_drift_are_added_after_the_update(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, ["we"], good, length=20)
    still = steps_of(BOLT(noise=0.0), problem, 1)[-1].bias
    shaken = steps_of(BOLT(noise=0.5, drift=2.0), problem, 1)[-1].bias
    added = shaken.value - still.value
    assert added.mean().item() == pytest.approx(2.0, abs=0.05)
    assert added.std().item() == pytest.approx(0.5, abs=0.05)
    assert torch.equal(shaken.mean, still.mean)


def test_a_normalised_bias_has_the_norm_of_the_logits(llama: SteerableModel) -> None:
    logits, vectors = 5 + torch.randn(3, 50), 0.01 * torch.randn(3, 50)
    matched = NormalisedBOLT()._matched(vectors, logits)
    assert torch.allclose(matched.norm(dim=-1), centred_norm(logits), rtol=1e-4)
    assert torch.allclose(torch.cosine_similarity(matched, vectors), torch.ones(3))
    assert torch.equal(BOLT()._matched(vectors, logits), vectors)


def test_the_size_of_a_normalised_bias_does_not_matter(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    drafts = [steps_of(NormalisedBOLT(start=start), problem, 1)[-1].latest.tokens.tolist() for start in (0.1, 2.0)]
    assert drafts[0] == drafts[1]
    assert drafts[0] != unsteered(lm, PROMPTS).draft.tokens.tolist()


def test_rows_that_leave_do_not_disturb_the_others(lm: SteerableModel, good: Classifier) -> None:
    problem, sampler, rng = problem_of(lm, PROMPTS, good), BOLT(), rng_of([7, 8, 9])
    state = steps_of(sampler, problem, 2, [7, 8, 9])[-1]
    whole = sampler.step(problem, state, rng.fold(4))
    some = sampler.step(problem.select([0, 2]), state.select([0, 2]), rng.select([0, 2]).fold(4))
    assert some.latest.tokens.tolist() == whole.latest.tokens[[0, 2]].tolist()
    for mine, their in zip((*some.bias, *some.weights), (*whole.bias, *whole.weights), strict=True):
        assert torch.allclose(mine, their[[0, 2]], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_keywords_get_written(llama: SteerableModel, kind: type[BOLT]) -> None:
    for wish in (Keywords(["soup"]), Keywords(["kayak", "sunrise"])):
        out = llama.steer(PROMPTS, wish, length=8, sampler=kind.name, steps=60)
        assert all(row.satisfied for row in out.rows)
        assert min(row.steps for row in out.rows) < 60


def test_forbidden_words_are_never_written(llama: SteerableModel, good: Classifier) -> None:
    sampler, free = BOLT(start=1.0), problem_of(llama, PROMPTS, good)
    written = " ".join(steps_of(sampler, free, 1)[-1].latest.texts)
    avoid = Avoid(re.findall(r"(?<!\w)[a-z]+(?!\w)", written))
    bound = problem_of(llama, PROMPTS, good + avoid)
    states = steps_of(sampler, bound, 3)
    assert all(avoid.satisfied(state.latest).all() for state in states)


def test_a_row_ends_at_its_eos_and_the_others_go_on(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    problem = limited(problem, free=True)
    sampler, rng = BOLT(noise=0.0), rng_of([0, 1, 2])
    state = sampler.init(problem, rng.fold(1))
    bias = state.bias.value.clone()
    bias[1, 3] = 1e3 * output_table(lm.model)[lm.vocabulary.eos[0]]
    bias[2, 0] = 1e3 * output_table(lm.model)[lm.vocabulary.eos[0]]
    state = state._replace(bias=Learned.new(bias))
    after = sampler.step(problem, state, rng.fold(2))
    draft = after.latest
    assert draft.tokens.shape == (3, 8)
    assert draft.lengths[1:].tolist() == [3, 0]
    assert (draft.tokens[1, 3:] == lm.vocabulary.pad).all()
    assert not draft.log_probs[1, 4:].any()
    assert all(torch.isfinite(part).all() for part in (*after.bias, *after.weights))
    assert not after.bias.gradient[1, 4:].any()  # nothing after its end has an effect
    for row in range(3):
        alone = sampler.step(problem.select([row]), state.select([row]), rng.select([row]).fold(2))
        assert alone.latest.tokens.tolist() == draft.tokens[[row]].tolist()
        assert torch.allclose(alone.bias.gradient, after.bias.gradient[[row]], atol=1e-5)


def test_several_wishes_have_the_settings_for_keywords_where_there_are_any(good: Classifier) -> None:
    words = Keywords(["soup"])
    words.sure = good.sure  # several wishes are sure where the least sure one is
    for kind in (BOLT, NormalisedBOLT):
        assert kind.presets(good + words) == kind.presets(words)
        assert kind.presets(good + good) == kind.presets(good)


def test_presets_fit_the_wish_and_the_original_is_one_of_them(good: Classifier) -> None:
    for kind in KINDS:
        classifier, keywords = (kind.presets(wish) for wish in (good, Keywords(["soup"])))
        assert classifier["default"].sampler == kind()
        assert keywords["default"].stop is not None
        for preset in (classifier["paper"], keywords["paper"]):
            assert isinstance(preset.sampler, kind)
            assert (preset.sampler.accumulate, preset.sampler.units, preset.sampler.drift) == (True, "raw", 0.01)
