"""Scores to noisy scores whose best token is a sample: how a rollout draws tokens instead of taking the likeliest."""

from __future__ import annotations

from typing import NamedTuple

import torch

from slalom.decoding.randomness import Rng


class Drawing(NamedTuple):
    """Sampled decoding: temperature, nucleus, and a stream of random numbers a row.

    The noise belongs to (seed, position, token) and not to the step. So from one draft to the next a text changes where
    it is steered and nowhere else, just as in greedy decoding.
    """

    temperature: float
    top_p: float
    rng: Rng

    def select(self, rows: list[int] | torch.Tensor) -> Drawing:
        """The same for some of the rows."""
        return self._replace(rng=self.rng.select(rows))

    def draw(self, position: int, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [a, V] of some rows [a] at a position, with Gumbel noise on the nucleus and nothing outside it."""
        cooled = scores / self.temperature
        where = nucleus(cooled, self.top_p).nonzero(as_tuple=True)
        counters = where[1] + position * scores.shape[-1]
        noise = self.rng.select(rows[where[0]]).gumbel(counters)
        noisy = torch.full_like(scores, -torch.inf)
        noisy[where] = cooled[where] + noise
        return noisy


def nucleus(scores: torch.Tensor, top_p: float) -> torch.Tensor:
    """The fewest tokens that together have at least this probability: scores [B, V] → bool [B, V]."""
    if top_p >= 1:
        return scores.isfinite()
    ordered, order = scores.softmax(-1).sort(descending=True)
    needed = ordered.cumsum(-1) - ordered < top_p  # what stands before it does not suffice
    return torch.zeros_like(needed).scatter(-1, order, needed) & scores.isfinite()
