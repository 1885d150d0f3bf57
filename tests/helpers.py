"""Small things several tests need."""

from __future__ import annotations

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Bias, Limits, Rollout, rollout
from slalom.constraints.constraint import Constraint
from slalom.decoding.sampler import Judge, Problem
from slalom.types import Draft, Relaxed


def draft_of(lm: LanguageModel, rows: list[tuple[str, str]]) -> Draft:
    """Given continuations as a draft; all must have the same number of tokens."""
    tokens = torch.tensor([lm.vocabulary.pieces(text) for _, text in rows])
    lengths = torch.full((len(rows),), tokens.shape[1])
    prompts = [lm.encode(prompt, 1) for prompt, _ in rows]
    draft = lm.draft(prompts, tokens, lengths, torch.zeros(tokens.shape))
    return draft._replace(log_probs=lm.log_probs(draft))


def unsteered(lm: LanguageModel, prompts: list[str], length: int = 8, **limits: object) -> Rollout:
    """The LM's own greedy text."""
    read = lm.read([lm.encode(prompt, length) for prompt in prompts])
    return rollout(lm, read, torch.arange(len(prompts)), Limits(length, **limits), top_k=5)  # type: ignore[arg-type]


def problem_of(lm: LanguageModel, prompts: list[str], constraint: Constraint, length: int = 8) -> Problem:
    """One row a prompt."""
    read = lm.read([lm.encode(prompt, length) for prompt in prompts])
    limits = Limits(length, forbidden=constraint.forbids(lm.vocabulary))
    return Problem(lm, read, torch.arange(len(prompts)), limits, constraint, Judge(constraint))


def push_at(places: torch.Tensor, token: int) -> Bias:
    """A bias that makes row i write a token at `places[i]`, and nothing else."""

    def push(i: int, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pushed = (places[rows] == i).nonzero()[:, 0]
        vectors = torch.zeros(len(pushed), logits.shape[1])
        vectors[:, token] = 1e4
        return pushed, vectors

    return push


def one_hots(draft: Draft) -> Relaxed:
    """A draft as mixtures that are no mixtures."""
    hot = torch.nn.functional.one_hot(draft.tokens, draft.vocabulary.size).double()
    return Relaxed(draft.vocabulary, draft.prompts, hot)
