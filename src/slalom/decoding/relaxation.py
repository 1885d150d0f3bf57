"""Tokens to f's gradient at their one-hots: all that samplers of the continuous kind see of a constraint."""

from __future__ import annotations

import torch

from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import Constraint
from slalom.types import Prompt, Relaxed


def real_until(tokens: torch.Tensor, eos: tuple[int, ...]) -> torch.Tensor:
    """How many tokens stand before each row's first EOS: [B, n] → [B]."""
    ends = torch.isin(tokens, torch.tensor(eos, device=tokens.device))
    return (ends.cumsum(-1) == 0).sum(-1)


def entries_at(
    constraint: Constraint, vocabulary: Vocabulary, prompts: list[Prompt], tokens: torch.Tensor
) -> torch.Tensor:
    """The gradient of f's relaxed score at the one-hots of tokens [B, n]: [B, n, V].

    Forward, f reads tokens; backward, mixtures: a straight-through estimate. From an EOS on there is nothing to read.
    """
    lengths = real_until(tokens, vocabulary.eos)
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    with torch.enable_grad():
        mixtures = torch.zeros(*tokens.shape, vocabulary.size, device=tokens.device)
        mixtures.scatter_(-1, tokens[..., None], real[..., None].float()).requires_grad_()
        f = constraint.relaxed_score(Relaxed(vocabulary, prompts, mixtures))
        (entries,) = torch.autograd.grad(f.sum(), mixtures)
    return entries
