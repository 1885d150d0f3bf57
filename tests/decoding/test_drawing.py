"""Drawn tokens follow the model's distribution, and belong to a seed alone."""

from __future__ import annotations

import torch
from transformers import TopPLogitsWarper

from slalom.api import SteerableModel
from slalom.backbone.rollout import Limits, rollout
from slalom.constraints.classifier import Classifier
from slalom.decoding.drawing import HEADS, Drawing, nucleus
from slalom.decoding.randomness import Rng

SEEDS = 20_000


def drawing(temperature: float = 1.0, top_p: float = 1.0, seeds: int = SEEDS) -> Drawing:
    each = torch.ones(seeds)
    return Drawing(temperature * each, top_p * each, Rng.from_seeds(list(range(seeds)), torch.device("cpu")))


def test_the_drawn_token_has_the_probability_the_scores_give_it() -> None:
    scores = torch.tensor([2.0, 1.0, 0.0, -torch.inf])
    for temperature in (0.5, 1.0, 2.0):
        noisy = drawing(temperature).draw(torch.full((SEEDS,), 3), torch.arange(SEEDS), scores.expand(SEEDS, -1))
        shares = noisy.argmax(-1).bincount(minlength=4) / SEEDS
        assert torch.allclose(shares, (scores / temperature).softmax(-1), atol=0.015)


def test_the_nucleus_is_the_fewest_tokens_that_suffice() -> None:
    scores = torch.tensor([[0.15, 0.5, 0.05, 0.3]]).log()
    for share, expected in ((0.45, [1]), (0.6, [1, 3]), (0.96, [0, 1, 2, 3]), (1.0, [0, 1, 2, 3])):
        assert nucleus(scores, torch.tensor([share])).isfinite().nonzero()[:, 1].tolist() == expected


def test_the_nucleus_is_that_of_transformers_whether_few_tokens_suffice_or_not() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.cat([spread * torch.randn(3, 5000, generator=generator) for spread in (4, 2, 0.1)])
    expected = TopPLogitsWarper(0.9)(None, scores)
    few, more, most = expected.isfinite().sum(-1).split(3)
    assert (few < HEADS[0]).all()
    assert ((more > HEADS[0]) & (more < HEADS[-1])).all()
    assert (most > HEADS[-1]).all()
    assert nucleus(scores, torch.full((9,), 0.9)).equal(expected)


def test_nothing_outside_the_nucleus_is_ever_drawn() -> None:
    scores = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()
    noisy = drawing(top_p=0.6).draw(torch.zeros(SEEDS, dtype=torch.long), torch.arange(SEEDS), scores.expand(SEEDS, -1))
    assert set(noisy.argmax(-1).tolist()) == {1, 3}


def test_a_cold_draw_is_the_greedy_text(llama: SteerableModel) -> None:
    prompts = llama.read([llama.encode("the food was", 8)])
    rows = torch.zeros(3, dtype=torch.long)
    greedy = rollout(llama, prompts, rows, Limits(8)).draft
    cold = rollout(llama, prompts, rows, Limits(8), draw=drawing(1e-6, seeds=3).draw).draft
    assert cold.tokens.tolist() == greedy.tokens.tolist()
    assert torch.allclose(cold.log_probs, greedy.log_probs)


def test_samples_differ_and_each_belongs_to_its_seed(lm: SteerableModel, good: Classifier) -> None:
    together = lm.steer(["the food was", "we"], good, samples=3, length=8, temperature=1.0, steps=3)
    assert len(set(together.texts)) == 6
    alone = lm.steer("we", good, seed=2, length=8, temperature=1.0, steps=3)
    assert alone.rows[0].text == together.rows[5].text
    assert alone.rows[0].unsteered == together.rows[5].unsteered


def test_a_nucleus_alone_means_drawing(llama: SteerableModel, good: Classifier) -> None:
    drawn = llama.steer("we", good, samples=4, length=8, top_p=0.9, steps=1)
    assert len(set(drawn.texts)) > 1
    greedy = llama.steer("we", good, samples=4, length=8, steps=1, sampler="none")
    assert len(set(greedy.texts)) == 1
