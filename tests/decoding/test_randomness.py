"""Random numbers are a pure function of the row's seed and of what they are for."""

from __future__ import annotations

import math

import torch

from slalom.decoding.randomness import Rng

CPU = torch.device("cpu")


def test_a_rows_numbers_do_not_depend_on_its_batch_mates() -> None:
    counters = torch.arange(50).expand(3, -1)
    together = Rng.from_seeds([7, 8, 9], CPU).fold(2).uniform(counters)
    for row, seed in enumerate([7, 8, 9]):
        assert torch.equal(Rng.from_seeds([seed], CPU).fold(2).uniform(counters[:1])[0], together[row])


def test_seeds_steps_and_counters_all_give_other_numbers() -> None:
    counters = torch.arange(1000)[None]
    streams = [Rng.from_seeds([seed], CPU).fold(step).uniform(counters) for seed in range(5) for step in range(5)]
    everything = torch.cat(streams).flatten()
    assert len(everything.unique()) == len(everything)


def test_numbers_are_uniform_and_uncorrelated() -> None:
    draws = Rng.from_seeds([0, 1], CPU).fold(1).uniform(torch.arange(100_000).expand(2, -1))
    assert ((draws > 0) & (draws < 1)).all()
    assert torch.allclose(draws.mean(-1), torch.tensor([0.5, 0.5]).double(), atol=0.005)
    assert torch.allclose(draws.var(-1), torch.tensor([1 / 12, 1 / 12]).double(), atol=0.002)
    assert abs(torch.corrcoef(draws)[0, 1]) < 0.01
    assert abs(torch.corrcoef(torch.stack([draws[0, :-1], draws[0, 1:]]))[0, 1]) < 0.01


def test_gumbel_noise_has_the_right_mean_and_is_finite() -> None:
    noise = Rng.from_seeds([3], CPU).gumbel(torch.arange(200_000)[None])
    assert torch.isfinite(noise).all()
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.var().item() - math.pi**2 / 6) < 0.03


def test_normal_numbers_have_the_right_moments_and_are_finite() -> None:
    numbers = Rng.from_seeds([3], CPU).normal(torch.arange(200_000)[None])
    assert torch.isfinite(numbers).all()
    assert abs(numbers.mean().item()) < 0.01
    assert abs(numbers.var().item() - 1) < 0.01
    assert abs((numbers**4).mean().item() - 3) < 0.1
    assert abs(torch.corrcoef(torch.stack([numbers[0, :-1], numbers[0, 1:]]))[0, 1]) < 0.01


def test_fast_normal_numbers_belong_to_the_row_and_the_moment() -> None:
    together = Rng.from_seeds([7, 8, 9], CPU).fold(2).normals(40, 500)
    assert torch.equal(Rng.from_seeds([8], CPU).fold(2).normals(40, 500)[0], together[1])
    assert not torch.equal(Rng.from_seeds([7, 8, 9], CPU).fold(3).normals(40, 500), together)
    assert torch.allclose(together.mean((1, 2)), torch.zeros(3), atol=0.03)
    assert torch.allclose(together.std((1, 2)), torch.ones(3), atol=0.03)
    assert torch.corrcoef(together.flatten(1)).fill_diagonal_(0).abs().max() < 0.03
