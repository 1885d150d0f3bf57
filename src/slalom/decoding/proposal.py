"""Candidate effects to bias tokens: one discrete Langevin proposal, every position by itself."""

from __future__ import annotations

from typing import NamedTuple

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

    With `moves`, only so many positions move: those where the sampled token is furthest ahead of the current one
    (candidate 0).
    """
    n = candidates.shape[1]
    noisy = log_weights + _noise(candidates, rng)
    best = noisy.max(-1)
    tokens = candidates.gather(-1, best.indices[..., None])[..., 0]
    if not 0 < moves < n:
        return tokens
    lead = best.values - noisy[..., 0]  # 0 where the current token won
    least = lead.topk(moves).values[:, -1:]
    return torch.where(lead >= least, tokens, candidates[..., 0])


class Moves(NamedTuple):
    """Single changes of a draft, several a row: which candidate to put where."""

    positions: torch.Tensor  # [B, m]
    columns: torch.Tensor  # [B, m], among the position's candidates
    real: torch.Tensor  # bool [B, m], a change at all

    def of(self, per_candidate: torch.Tensor) -> torch.Tensor:
        """Values of candidates [B, n, k] at these moves: [B, m]."""
        rows = torch.arange(len(per_candidate), device=per_candidate.device)[:, None]
        return per_candidate[rows, self.positions, self.columns]

    def one(self, which: torch.Tensor) -> Moves:
        """Of each row's moves the one numbered `which` [B]: [B, 1]."""
        return Moves(*(tensor.gather(1, which[:, None]) for tensor in self))


def shortlist(log_weights: torch.Tensor, candidates: torch.Tensor, count: int, rng: Rng) -> Moves:
    """Sample `count` different moves a row, each by its lead over staying (candidate 0), without replacement."""
    noisy = log_weights + _noise(candidates, rng)
    lead = noisy - noisy[..., :1]
    lead[..., 0] = -torch.inf
    best = lead.flatten(1).topk(min(count, lead[0].numel()))
    width = candidates.shape[-1]
    return Moves(best.indices // width, best.indices % width, best.values.isfinite())


def _noise(candidates: torch.Tensor, rng: Rng) -> torch.Tensor:
    """Gumbel noise that belongs to (row, position, token), so that the order of candidates does not matter."""
    n = candidates.shape[1]
    positions = torch.arange(n, device=candidates.device)[:, None]
    return rng.gumbel(candidates * n + positions)
