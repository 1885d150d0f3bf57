"""Log-probabilities to differentiable BLEU: how near keywords are to being written."""

from __future__ import annotations

import torch

from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.keywords import Keywords
from slalom.decoding.randomness import Rng


def bleu(keywords: Keywords, vocabulary: Vocabulary, log_probs: torch.Tensor, rng: Rng) -> torch.Tensor:
    """The expected mean log-probability of a keyword's tokens, [B, n, V] → [B]; higher is better.

    Expected over where a word might stand and how it is spelt, by a softmax of those log-probabilities with Gumbel
    noise; with `any` over the words too, with `all` the mean over them. Unlike in BOLT's code, a word's tokens must be
    adjacent, and nothing is clamped: a clamped log-probability has no gradient.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for number, spelling in enumerate(keywords.spellings(vocabulary)):
        group = spelling.word if keywords.mode == "all" else 0
        groups.setdefault(group, []).append(_matches(log_probs, spelling.tokens, number, rng))
    return torch.stack([_expected(torch.cat(own, -1)) for own in groups.values()]).mean(0)


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
