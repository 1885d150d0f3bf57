"""MuCoLa moves texts on the embedding table by the LM's energy and a multiplier per constraint."""

from __future__ import annotations

import functools

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.rollout import rollout
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding.mucola import (
    PATIENCE,
    Energy,
    MuCoLa,
    MuCoLaState,
    dot_plus_plus,
    head_map,
    nearness,
    spacing,
)
from slalom.decoding.randomness import Rng
from slalom.decoding.scheduler import RowReport
from slalom.types import Draft
from tests.constraints.test_contract import table_classifier
from tests.helpers import decode, draft_of, problem_of, unsteered

PROMPTS = ["the food was", "a lovely day by the river with", "we"]
SMALL = MuCoLa(inner=4, always=True)


def rng_of(*seeds: int) -> Rng:
    return Rng.from_seeds(list(seeds), torch.device("cpu"))


def test_the_energy_on_the_table_is_the_summed_negative_log_probability(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    draft = unsteered(lm, PROMPTS).draft
    energy = MuCoLa()._energy(problem, draft.tokens)
    for row, prompt in enumerate(PROMPTS):  # one by one, with Hugging Face's own loss: no padding at all
        before = lm.tokenizer(prompt, return_tensors="pt")["input_ids"]
        ids = torch.cat([before, draft.tokens[row : row + 1]], dim=1)
        labels = ids.clone()
        labels[:, : before.shape[1]] = -100
        summed = lm.model(ids, labels=labels).loss.item() * draft.tokens.shape[1]
        assert -energy.log_probs[row].sum().item() == pytest.approx(summed, rel=1e-4)


def test_the_gradient_at_the_last_token_is_minus_one_minus_p_times_h(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    tokens = unsteered(lm, PROMPTS).draft.tokens
    with torch.no_grad():
        reading = lm.continued([lm.encode(prompt, 8) for prompt in PROMPTS], lm.embed(tokens))
    p = reading.logits.softmax(-1).gather(-1, tokens[..., None])[:, -1]
    expected = -(1 - p) * reading.hidden[:, -1]
    if (carried := head_map(lm)) is not None:
        expected = expected @ carried.T
    assert torch.allclose(MuCoLa()._energy(problem, tokens).slope[:, -1], expected, atol=1e-5)


def test_the_gradient_through_later_tokens_is_that_of_finite_differences(lm: SteerableModel) -> None:
    prompts, tokens = [lm.encode("the food was", 4)], torch.tensor([[300, 310, 320, 330]])
    embeddings = lm.embed(tokens).requires_grad_()
    whole = dot_plus_plus(lm.continued(prompts, embeddings), embeddings, tokens, head_map(lm))
    (slope,) = torch.autograd.grad(whole[:, 1:].sum(), embeddings)  # of the first token, later ones' energy alone
    nudge = torch.zeros_like(embeddings)
    nudge[0, 0] = 1e-2 * torch.nn.functional.normalize(slope[0, 0], dim=0)
    energies = []
    for moved in (embeddings.detach() + nudge, embeddings.detach() - nudge):
        log_p = lm.continued(prompts, moved).logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
        energies.append(-log_p[:, 1:].sum().item())
    assert (energies[0] - energies[1]) / 2e-2 == pytest.approx(slope[0, 0].norm().item(), rel=0.02)


def test_a_tied_head_needs_no_map_and_an_untied_one_the_least_squares(lm: SteerableModel) -> None:
    table, head = lm.vocabulary.embeddings, lm.model.get_output_embeddings().weight.detach()
    if lm.model.config.tie_word_embeddings:
        assert head_map(lm) is None
    else:
        expected = torch.linalg.lstsq(table, head).solution
        assert torch.allclose(head_map(lm), expected, atol=1e-3)


def test_the_nearest_token_to_a_tokens_own_place_is_the_token(lm: SteerableModel) -> None:
    tokens = torch.arange(lm.vocabulary.size).view(1, -1)
    places = lm.vocabulary.embeddings[tokens] / spacing(lm.vocabulary)
    assert nearness(lm.vocabulary, places).argmax(-1).tolist() == tokens.tolist()


def test_without_gradient_and_noise_a_text_stays_where_it_is(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    sampler = MuCoLa(lr=0.0, noise=0.0, inner=3, always=True)
    state = sampler.step(problem, sampler.init(problem, rng_of(0, 1, 2)), rng_of(0, 1, 2))
    assert state.tokens.tolist() == unsteered(lm, PROMPTS).draft.tokens.tolist()
    assert state.unchanged.tolist() == [3, 3, 3]


def test_the_spacing_is_the_median_distance_to_the_nearest_neighbour(llama: SteerableModel) -> None:
    table = llama.vocabulary.embeddings[~llama.vocabulary.never_candidates]
    distances = torch.cdist(table, table).fill_diagonal_(torch.inf)
    assert spacing(llama.vocabulary) == pytest.approx(distances.amin(-1).median().item(), rel=1e-4)


def test_a_row_whose_first_text_fulfils_everything_rests(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS, good)
    first = unsteered(llama, PROMPTS).draft
    goal = sorted(good.score(first).tolist())[1] + 1e-4  # one row is beyond it
    for always in (False, True):
        sampler = MuCoLa(goal=goal, noise=2.0, inner=5, always=always)
        state = sampler.init(problem, rng_of(0, 1, 2))
        assert state.resting.sum() == (0 if always else 1)
        after = sampler.step(problem, state, rng_of(0, 1, 2).fold(2))
        stayed = (after.tokens == state.tokens).all(-1)
        assert stayed.tolist() == state.resting.tolist()


def test_a_multiplier_grows_by_its_shortfall_and_presses(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS, good + Keywords(["soup"]))
    sampler = MuCoLa(goal=3.0, lr=0.0, noise=0.0, inner=1, always=True)
    state = sampler.init(problem, rng_of(0, 1, 2))
    short = -state.energy.excess
    assert torch.allclose(short[:, 0], 3.0 - good.score(state.draft), atol=1e-4)
    after = sampler.step(problem, state, rng_of(0, 1, 2))
    assert torch.allclose(after.multipliers, short.clamp(min=0), atol=1e-4)
    assert torch.allclose(sampler._pressure(after.multipliers, -short), after.multipliers + 0.1 * short, atol=1e-4)


def test_a_fulfilled_constraint_with_a_small_multiplier_does_not_press() -> None:
    sampler = MuCoLa()
    pressure = sampler._pressure(torch.tensor([[0.1, 1.0]]), torch.tensor([[2.0, 2.0]]))
    assert pressure[0].tolist() == pytest.approx([0.1, 0.8])


def test_a_text_that_fulfils_everything_and_stays_is_the_solution(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS, good)
    sampler = MuCoLa(goal=-100.0, lr=0.0, noise=0.0, inner=1, always=True)
    state = sampler.init(problem, rng_of(0, 1, 2))
    found = []
    for step in range(2, 8):
        state = sampler.step(problem, state, rng_of(0, 1, 2).fold(step))
        found.append(bool(state.solution.found.all()))
    assert found == [False] * 4 + [True] * 2
    assert state.solution.tokens.tolist() == state.tokens.tolist()
    for step in range(8, PATIENCE[1] + 3):
        state = sampler.step(problem, state, rng_of(0, 1, 2).fold(step))
    assert state.resting.all()


def test_the_constraints_gradient_moves_the_text_towards_it(lm: SteerableModel) -> None:
    constraint = table_classifier(lm)
    problem = problem_of(lm, PROMPTS, constraint)
    before = constraint.score(unsteered(lm, PROMPTS).draft)
    sampler = MuCoLa(goal=float(before.max()) + 1, growth=5.0, noise=0.0, inner=10)
    ends = decode(problem, sampler, [0, 1, 2], steps=3)
    assert sum(end.best.verdict.score for end in ends) > before.sum().item()


def test_keywords_land(lm: SteerableModel) -> None:
    wish = Keywords(["soup", "river"])
    ends = decode(problem_of(lm, PROMPTS, wish), MuCoLa(inner=20), [0, 1, 2], steps=4)
    assert sum(end.best.verdict.satisfied for end in ends) >= 2


def test_a_chain_in_a_batch_equals_the_same_chain_alone(lm: SteerableModel, good: Classifier) -> None:
    together = run(lm, PROMPTS, good, [3, 1, 3])
    for row, (prompt, seed) in enumerate(zip(PROMPTS, [3, 1, 3], strict=True)):
        alone = run(lm, [prompt], good, [seed])
        assert alone.tokens[0].tolist() == together.tokens[row].tolist()
        assert torch.allclose(alone.multipliers[0], together.multipliers[row], atol=1e-3)


def run(lm: SteerableModel, prompts: list[str], good: Classifier, seeds: list[int]) -> MuCoLaState:
    problem = problem_of(lm, prompts, good)
    return SMALL.step(problem, SMALL.init(problem, rng_of(*seeds)), rng_of(*seeds).fold(2))


def test_rows_that_leave_do_not_disturb_the_others(llama: SteerableModel, good: Classifier) -> None:
    problem, rng = problem_of(llama, PROMPTS, good), rng_of(0, 1, 2)
    state = SMALL.step(problem, SMALL.init(problem, rng), rng.fold(2))
    rest = [0, 2]
    part = SMALL.step(problem.select(rest), state.select(rest), rng.select(rest).fold(3))
    whole = SMALL.step(problem, state, rng.fold(3))
    assert part.tokens.tolist() == whole.tokens[rest].tolist()
    assert torch.allclose(part.multipliers, whole.multipliers[rest], atol=1e-3)


def test_a_step_leaves_the_state_before_it_as_it_was(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS, good)
    sampler = MuCoLa(noise=2.0, inner=3, always=True)
    state = sampler.init(problem, rng_of(0, 1, 2))
    before = Energy(*(tensor.clone() for tensor in state.energy))
    assert (sampler.step(problem, state, rng_of(0, 1, 2)).tokens != state.tokens).any()
    assert all(torch.equal(old, now) for old, now in zip(before, state.energy, strict=True))


def test_drafts_say_truthfully_what_the_lm_thinks(lm: SteerableModel, good: Classifier) -> None:
    problem = problem_of(lm, PROMPTS, good)
    sampler = MuCoLa(noise=2.0, inner=3, always=True)
    draft = sampler.read(problem, sampler.step(problem, sampler.init(problem, rng_of(0, 1, 2)), rng_of(0, 1, 2)))
    assert torch.allclose(draft.log_probs, lm.log_probs(draft), atol=1e-3)


def test_the_start_is_drawn_from_the_nucleus(llama: SteerableModel, good: Classifier) -> None:
    temperatures = [(preset.temperature, preset.top_p) for preset in MuCoLa.presets(good).values()]
    assert temperatures == [(0.8, 0.96), (1.0, 0.96), (0.8, 0.96)]  # ours, the paper's, and ours with its iterations
    out = llama.steer("the food", good, sampler="mucola", samples=4, steps=1, length=8)
    assert len(set(out.texts)) > 1


def test_nothing_forbidden_is_ever_written(lm: SteerableModel, good: Classifier) -> None:
    words = [text.split()[0] for text in unsteered(lm, PROMPTS).draft.texts if text.split()]
    avoid = Avoid([word for word in words if word.isalnum()] or ["soup"])
    texts: list[tuple[str, str]] = []

    def note(rows: list[RowReport]) -> None:
        draft = functools.reduce(Draft.join, [row.seen.draft for row in rows])
        texts.extend((prompt.text, text) for prompt, text in zip(draft.prompts, draft.texts, strict=True))

    sampler = MuCoLa(noise=2.0, last_noise=2.0, inner=4, always=True)
    decode(problem_of(lm, PROMPTS, good + avoid), sampler, [0, 1, 2], steps=3, callbacks=(note,))
    assert not any(avoid.found(prompt, text) for prompt, text in texts)


def test_in_free_length_nothing_past_an_eos_counts(llama: SteerableModel, good: Classifier) -> None:
    problem = problem_of(llama, PROMPTS[:1], good)
    eos = llama.vocabulary.eos[0]
    whole = rollout(llama, problem.prompts, problem.rows, problem.limits).draft.tokens
    ended = whole.clone()
    ended[:, 4:] = eos
    other = ended.clone()
    other[:, 6] = 300
    mine, same = MuCoLa()._energy(problem, ended), MuCoLa()._energy(problem, other)
    assert torch.allclose(mine.slope[:, :5], same.slope[:, :5], atol=1e-6)
    assert (mine.slope[:, 5:] == 0).all()
    assert (mine.entries[:, :, 4:] == same.entries[:, :, 4:]).all()
    draft = draft_of(llama, [("the food was", " good")])
    assert draft.lengths.tolist() == [draft.tokens.shape[1]]
    assert mine.log_probs[0, 4] < 0  # ending is charged
    assert mine.log_probs[0, 5:].tolist() == [0.0] * 3


def test_no_parameter_ever_gets_a_gradient(lm: SteerableModel, good: Classifier) -> None:
    lm.steer("the food", good, sampler="mucola", steps=2, length=6, knobs={"inner": 2, "always": True})
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    assert all(parameter.grad is None for parameter in good.model.parameters())


def test_the_authors_preset_has_their_number_of_iterations(good: Classifier) -> None:
    authors = MuCoLa.presets(good)["authors"]
    assert (authors.steps - 1) * authors.sampler.inner == 300  # type: ignore[attr-defined]
