"""Scores to noisy scores whose best token is a sample: how a rollout draws tokens instead of taking the likeliest."""

from __future__ import annotations

from typing import NamedTuple

import torch
from transformers import TopPLogitsWarper

from slalom.backbone.rollout import highest
from slalom.decoding.randomness import Rng

HEADS = (256, 2048)  # tokens among which a nucleus is looked for, before all are sorted


class Drawing(NamedTuple):
    """Sampled decoding: each row's temperature, nucleus, and stream of random numbers.

    The noise belongs to (seed, position, token) and not to the step. So from one draft to the next a text changes where
    it is steered and nowhere else, just as in greedy decoding.
    """

    temperature: torch.Tensor  # [B]; 0 takes the likeliest token
    top_p: torch.Tensor  # [B]
    rng: Rng

    def select(self, rows: list[int] | torch.Tensor) -> Drawing:
        """The same for some of the rows."""
        return Drawing(self.temperature[rows], self.top_p[rows], self.rng.select(rows))

    def join(self, other: Drawing) -> Drawing:
        """Those of both."""
        temperature = torch.cat([self.temperature, other.temperature])
        return Drawing(temperature, torch.cat([self.top_p, other.top_p]), self.rng.join(other.rng))

    def draw(self, positions: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [a, V] at positions [a] of some rows [a], with Gumbel noise on the nucleus and nothing outside it."""
        drawn = (self.temperature[rows] > 0).nonzero()[:, 0]
        if not len(drawn):
            return scores
        whose = rows[drawn]
        cooled = scores[drawn] / self.temperature[whose, None]
        cooled = nucleus(cooled, self.top_p[whose])
        where = cooled.isfinite().nonzero(as_tuple=True)
        counters = where[1] + positions[drawn][where[0]] * scores.shape[-1]
        noise = self.rng.select(whose[where[0]]).gumbel(counters)
        noisy = torch.full_like(cooled, -torch.inf)
        noisy[where] = cooled[where] + noise
        return scores.index_copy(0, drawn, noisy)


def nucleus(scores: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Scores [B, V] with minus infinity outside the fewest tokens that together have a row's probability [B]."""
    for share in {share for share in top_p.tolist() if share < 1}:
        rows = (top_p == share).nonzero()[:, 0]
        scores = scores.index_copy(0, rows, _nucleus(scores[rows], share))
    return scores


def _nucleus(scores: torch.Tensor, share: float, heads: tuple[int, ...] = HEADS) -> torch.Tensor:
    """The same for one share, found among the likeliest tokens where these suffice: to sort all takes longer."""
    if not heads:
        return TopPLogitsWarper(share)(None, scores)
    values, tokens = highest(scores, min(heads[0], scores.shape[1]))
    probabilities = (values - scores.logsumexp(-1, keepdim=True)).exp()
    reached = probabilities.cumsum(-1)
    kept = values.masked_fill(reached - probabilities >= share, -torch.inf)
    inside = torch.full_like(scores, -torch.inf).scatter(-1, tokens, kept)
    rest = (reached[:, -1] < share).nonzero()[:, 0]
    return inside.index_copy(0, rest, _nucleus(scores[rest], share, heads[1:])) if len(rest) else inside
