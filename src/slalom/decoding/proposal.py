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


SCORES = {"gradient": gradient_scores, "difference": difference_scores}


def propose(log_weights: torch.Tensor, candidates: torch.Tensor, rng: Rng) -> torch.Tensor:
    """Sample a token at every position: log-weights and candidates [B, n, k] → bias tokens [B, n].

    The noise belongs to (row, position, token), so it does not matter in which order the candidates come.
    """
    n = candidates.shape[1]
    positions = torch.arange(n, device=candidates.device)[:, None]
    noise = rng.gumbel(candidates * n + positions)
    chosen = (log_weights + noise).argmax(-1, keepdim=True)
    return candidates.gather(-1, chosen)[..., 0]
