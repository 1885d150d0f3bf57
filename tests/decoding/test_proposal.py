"""The Langevin proposal samples what its formula says."""

from __future__ import annotations

import torch

from slalom.decoding.proposal import difference_scores, gradient_scores, propose, shortlist
from slalom.decoding.randomness import Rng

CPU = torch.device("cpu")


def test_frequencies_match_the_formula_on_a_five_word_vocabulary() -> None:
    gradient = torch.tensor([[0.3, -0.1, 0.2, 0.0, -0.4], [0.0, 0.1, 0.05, -0.2, 0.15]])  # [n, k]
    tau, draws = 0.2, 20_000
    log_weights = gradient_scores(gradient) / tau  # the current token, candidate 0, scores 0
    candidates = torch.tensor([[4, 0, 1, 2, 3], [1, 0, 2, 3, 4]])
    rng = Rng.from_seeds(list(range(draws)), CPU)
    tokens = propose(log_weights.expand(draws, -1, -1), candidates.expand(draws, -1, -1), rng)
    for position in range(2):
        expected = (gradient_scores(gradient)[position] / tau).softmax(-1)
        for candidate, probability in zip(candidates[position].tolist(), expected.tolist(), strict=True):
            share = (tokens[:, position] == candidate).float().mean().item()
            assert abs(share - probability) < 4 * (probability * (1 - probability) / draws) ** 0.5


def test_the_order_of_candidates_does_not_matter() -> None:
    log_weights = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    candidates = torch.arange(6).expand(4, 3, -1)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    rng = Rng.from_seeds([1, 2, 3, 4], CPU)
    assert torch.equal(
        propose(log_weights, candidates, rng), propose(log_weights[..., order], candidates[..., order], rng)
    )


def test_a_candidate_without_weight_is_never_proposed() -> None:
    log_weights = torch.tensor([[[0.0, -torch.inf, 0.0]]]).expand(500, 1, -1)
    candidates = torch.tensor([[[10, 11, 12]]]).expand(500, 1, -1)
    assert 11 not in propose(log_weights, candidates, Rng.from_seeds(list(range(500)), CPU))


def test_a_shortlist_holds_the_moves_furthest_ahead_of_staying() -> None:
    log_weights = torch.tensor([[[0.0, 50.0, 80.0], [0.0, 90.0, -90.0], [0.0, -torch.inf, 70.0]]])
    candidates = torch.arange(9).view(1, 3, 3)
    moves = shortlist(log_weights, candidates, 4, Rng.from_seeds([0], CPU))
    assert moves.of(candidates).tolist() == [[4, 2, 8, 1]]
    assert moves.positions.tolist() == [[1, 0, 2, 0]]
    assert moves.real.all()
    everything = shortlist(log_weights, candidates, 100, Rng.from_seeds([0], CPU))
    assert everything.real.sum() == 5  # staying is no move, and what has no weight is none either


def test_differences_are_gains_over_the_current_token() -> None:
    entries = torch.tensor([[[2.0, 5.0, -1.0]]])
    assert difference_scores(entries).tolist() == [[[0.0, 3.0, -3.0]]]
    assert gradient_scores(entries).tolist() == [[[0.0, 5.0, -1.0]]]
