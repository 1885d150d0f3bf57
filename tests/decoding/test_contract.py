"""What every sampler must fulfil. A new sampler joins by its line in `SAMPLERS`."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding import SAMPLERS
from slalom.decoding.lm_steer import LMSteer
from slalom.decoding.objective import Objective
from slalom.decoding.sampler import Sampler
from tests.helpers import decode, problem_of, steer_folder

PROMPTS = ["the food was", "a lovely day by the river with", "we"]


DRAWN = {"best-of-n", "lm-steer", "none", "rerank"}  # random only where tokens are drawn


@pytest.fixture(params=SAMPLERS)
def sampler(request: pytest.FixtureRequest, tmp_path: Path) -> Sampler:
    kind = SAMPLERS[request.param]
    if kind is LMSteer:
        return LMSteer(steer=str(steer_folder(tmp_path / "steer")))
    small = {"top_k": 20, "inner": 4}
    return kind(**{name: value for name, value in small.items() if name in kind.__dataclass_fields__})


def test_same_seed_same_text_alone_or_in_a_batch(lm: SteerableModel, good: Classifier, sampler: Sampler) -> None:
    seeds = [3, 1, 3]
    drawn = sampler.name in DRAWN
    together = decode(problem_of(lm, PROMPTS, good, drawn=seeds if drawn else None), sampler, seeds, steps=5)
    for row, (prompt, seed) in enumerate(zip(PROMPTS, seeds, strict=True)):
        problem = problem_of(lm, [prompt], good, drawn=[seed] if drawn else None)
        (alone,) = decode(problem, sampler, [seed], steps=5)
        assert alone.best.draft.tokens.tolist() == together[row].best.draft.tokens.tolist()


def test_another_seed_gives_another_chain(lm: SteerableModel, good: Classifier, sampler: Sampler) -> None:
    tokens = set()
    for seed in range(6):
        problem = problem_of(lm, ["the food was"], good, drawn=[seed] if sampler.name in DRAWN else None)
        state = sampler.init(problem, rng_of(seed))
        state = sampler.step(problem, state, rng_of(seed).fold(2))
        tokens.add(tuple(sampler.read(problem, state).tokens[0].tolist()))
    assert len(tokens) > 1


def test_drafts_have_the_asked_length_and_only_writable_tokens(
    lm: SteerableModel, good: Classifier, sampler: Sampler
) -> None:
    for end in decode(problem_of(lm, PROMPTS, good, length=7), sampler, [0, 1, 2], steps=4):
        assert end.best.draft.tokens.shape == (1, 7)
        assert not lm.vocabulary.banned_fixed[end.best.draft.tokens].any()


def test_it_works_for_a_sum_of_constraints(llama: SteerableModel, good: Classifier, sampler: Sampler) -> None:
    wish = good + 0.5 * Keywords(["soup"])
    (end,) = decode(problem_of(llama, ["we"], wish), sampler, [0], steps=4)
    assert [part.name for part in end.best.verdict.parts] == ["classifier:good", "keywords:any(soup)"]


def test_every_knob_is_documented() -> None:
    for kind in SAMPLERS.values():
        assert kind.__doc__
        assert all(knob.metadata["help"] for knob in fields(kind))


def test_no_knob_of_a_sampler_is_called_like_one_of_the_objective_which_would_take_what_is_set_for_it() -> None:
    taken = {field.name for field in fields(Objective)}
    for kind in SAMPLERS.values():
        assert not taken & {knob.name for knob in fields(kind)}


def rng_of(seed: int):  # type: ignore[no-untyped-def]
    import torch

    from slalom.decoding.randomness import Rng

    return Rng.from_seeds([seed], torch.device("cpu"))
