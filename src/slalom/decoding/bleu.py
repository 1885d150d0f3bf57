"""Log-probabilities to differentiable BLEU: how near words are to being written."""

from __future__ import annotations

from itertools import count

import torch

from slalom.decoding.randomness import Rng


def bleu(groups: list[list[tuple[int, ...]]], log_probs: torch.Tensor, rng: Rng) -> torch.Tensor:
    """The expected mean log-probability of a spelling's tokens, the mean over the groups of them, [B, n, V] → [B].

    Higher is better. Expected over the spellings of a group and where they might stand, by a softmax of those
    log-probabilities with Gumbel noise. Unlike in BOLT's code, a word's tokens must be adjacent, and nothing is
    clamped: a clamped log-probability has no gradient.
    """
    numbers = count()  # every spelling has noise of its own
    matches = [[_matches(log_probs, tokens, next(numbers), rng) for tokens in group] for group in groups]
    return torch.stack([_expected(torch.cat(own, -1)) for own in matches]).mean(0)


def _matches(log_probs: torch.Tensor, tokens: tuple[int, ...], number: int, rng: Rng) -> torch.Tensor:
    """Mean log-probability of a spelling begun at each position where it fits, and noise of its own: [2, B, starts]."""
    batch, n, _ = log_probs.shape
    starts = max(0, n - len(tokens) + 1)
    diagonal = torch.stack([log_probs[:, k : k + starts, token] for k, token in enumerate(tokens)])
    counters = torch.arange(starts, device=log_probs.device).expand(batch, -1) + number * n
    return torch.stack([diagonal.mean(0), rng.gumbel(counters)])


def _expected(matches: torch.Tensor) -> torch.Tensor:
    """The mean of the matches under the softmax of themselves and their noise: [2, B, places] → [B]."""
    own, noise = matches
    return ((own + noise).softmax(-1) * own).sum(-1)
