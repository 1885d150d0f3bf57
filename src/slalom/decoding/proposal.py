"""Candidate scores to what to try: bias tokens by a discrete Langevin proposal, or a shortlist of single moves."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slalom.decoding.randomness import Rng

POSITIONS = 1 << 20  # more than any text has


def gradient_scores(entries: torch.Tensor) -> torch.Tensor:
    """The paper's score: a candidate's gradient entry; the current token (candidate 0) has 0."""
    return torch.cat([torch.zeros_like(entries[..., :1]), entries[..., 1:]], dim=-1)


def difference_scores(entries: torch.Tensor) -> torch.Tensor:
    """A candidate's first-order gain over the current token (candidate 0): where none helps, staying is best."""
    return entries - entries[..., :1]


SCORES = {"gradient": gradient_scores, "difference": difference_scores}


def propose(log_weights: torch.Tensor, candidates: torch.Tensor, rng: Rng) -> torch.Tensor:
    """Sample a token at every position: log-weights and candidates [B, n, k] → bias tokens [B, n]."""
    best = (log_weights + _noise(candidates, rng)).argmax(-1)
    return candidates.gather(-1, best[..., None])[..., 0]


class Moves(NamedTuple):
    """Single changes of a draft, several a row: which candidate to put where."""

    positions: torch.Tensor  # [B, m]
    columns: torch.Tensor  # [B, m], among the position's candidates
    real: torch.Tensor  # bool [B, m], a change at all

    def of(self, per_candidate: torch.Tensor) -> torch.Tensor:
        """Values of candidates [B, n, k] at these moves: [B, m]."""
        rows = torch.arange(len(per_candidate), device=per_candidate.device)[:, None]
        return per_candidate[rows, self.positions, self.columns]

    def some(self, which: torch.Tensor) -> Moves:
        """Of each row's moves those numbered `which` [B, w]."""
        return Moves(*(tensor.gather(1, which) for tensor in self))


def shortlist(log_weights: torch.Tensor, candidates: torch.Tensor, count: int, rng: Rng) -> Moves:
    """Sample `count` different moves a row, each by its lead over staying (candidate 0), without replacement."""
    noisy = log_weights + _noise(candidates, rng)
    lead = noisy - noisy[..., :1]
    lead[..., 0] = -torch.inf
    best = lead.flatten(1).topk(min(count, lead[0].numel()))
    width = candidates.shape[-1]
    return Moves(best.indices // width, best.indices % width, best.values.isfinite())


def counters(tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A number of its own for every token at every position, whatever the length of the text."""
    return tokens * POSITIONS + positions


def _noise(candidates: torch.Tensor, rng: Rng) -> torch.Tensor:
    """Gumbel noise that belongs to (row, position, token), so that the order of candidates does not matter."""
    positions = torch.arange(candidates.shape[1], device=candidates.device)[:, None]
    return rng.gumbel(counters(candidates, positions))
