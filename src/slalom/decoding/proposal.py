"""Candidate effects to bias tokens: one discrete Langevin proposal, every position by itself."""

from __future__ import annotations

import torch

from slalom.decoding.randomness import Rng


def gradient_scores(entries: torch.Tensor) -> torch.Tensor:
    """The paper's score: a candidate's gradient entry; the current token (candidate 0) has 0."""
    return torch.cat([torch.zeros_like(entries[..., :1]), entries[..., 1:]], dim=-1)


def difference_scores(entries: torch.Tensor) -> torch.Tensor:
    """A candidate's first-order gain over the current token (candidate 0): where none helps, staying is best."""
    return entries - entries[..., :1]


def normalised_scores(entries: torch.Tensor) -> torch.Tensor:
    """Those gains in units of their own spread over the row's positions and candidates.

    A classifier's gradient is steep for one text and almost flat for another; what it prefers is the same.
    """
    gains = difference_scores(entries)
    return gains / gains.std(dim=(1, 2), keepdim=True).clamp(min=1e-9)


SCORES = {"gradient": gradient_scores, "difference": difference_scores, "normalised": normalised_scores}


def propose(log_weights: torch.Tensor, candidates: torch.Tensor, moves: int, rng: Rng) -> torch.Tensor:
    """Sample a token at every position: log-weights and candidates [B, n, k] → bias tokens [B, n].

    The noise belongs to (row, position, token), so it does not matter in which order the candidates come. With `moves`,
    only so many positions move, those where the sampled token is furthest ahead of the current one (candidate 0).
    """
    n = candidates.shape[1]
    positions = torch.arange(n, device=candidates.device)[:, None]
    noisy = log_weights + rng.gumbel(candidates * n + positions)
    best = noisy.max(-1)
    tokens = candidates.gather(-1, best.indices[..., None])[..., 0]
    if not 0 < moves < n:
        return tokens
    lead = best.values - noisy[..., 0]  # 0 where the current token won
    least = lead.topk(moves).values[:, -1:]
    return torch.where(lead >= least, tokens, candidates[..., 0])
