"""Prompts to a draft: n tokens a row, each the best by the logits and whatever bias is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from slalom.types import Draft, Prompt

if TYPE_CHECKING:
    from slalom.backbone.engine import Prefix
    from slalom.backbone.model import LanguageModel

REPETITION_PENALTY = 1.2

Bias = Callable[[int, torch.Tensor], torch.Tensor]  # position i and its logits [B, V] → what to add to them [B, V]


class Prompts(NamedTuple):
    """Different prompts the engine has read, ready to be continued many times."""

    prompts: list[Prompt]
    prefix: Prefix


class Rollout(NamedTuple):
    """A draft, and at every position its candidates: the token itself, extra ones asked for, the LM's k favourites."""

    draft: Draft
    candidates: torch.Tensor  # [B, n, c]
    log_probs: torch.Tensor  # [B, n, c], the LM's before any bias
    repeated: torch.Tensor  # bool [B, n, c], a candidate that stands there already
    unbiased: torch.Tensor  # [B, n], what would have been chosen without the bias

    def where(self, take: torch.Tensor, other: Rollout) -> Rollout:
        """This rollout's rows where `take` says so, bool [B], the other's elsewhere."""
        pairs = zip(self[1:], other[1:], strict=True)
        merged = (torch.where(take.view(-1, *[1] * (mine.dim() - 1)), mine, their) for mine, their in pairs)
        return Rollout(self.draft.where(take, other.draft), *merged)

    def select(self, rows: list[int]) -> Rollout:
        """Only these rows."""
        return Rollout(self.draft.select(rows), *(tensor[rows] for tensor in self[1:]))


class Limits(NamedTuple):
    """How far and under which rules a rollout goes; the same for every sampler."""

    length: int
    free: bool = False  # free length: EOS ends a row, line breaks are allowed
    repetition_penalty: float = REPETITION_PENALTY  # on generated tokens


@torch.inference_mode()
def rollout(
    lm: LanguageModel,
    prompts: Prompts,
    rows: torch.Tensor,
    limits: Limits,
    bias: Bias | None = None,
    top_k: int = 0,
    extra: list[int] | None = None,
) -> Rollout:
    """Continue prompt `rows[i]` in row i, greedily, adding `bias` to the logits of each position."""
    vocabulary = lm.vocabulary
    banned = vocabulary.banned_free if limits.free else vocabulary.banned_fixed
    eos = torch.tensor(vocabulary.eos, device=rows.device)
    size, n = len(rows), limits.length
    tokens = torch.full((size, n), vocabulary.pad, device=rows.device)
    log_probs = torch.zeros(size, n, device=rows.device)
    lengths = torch.full((size,), n, device=rows.device)
    unbiased = torch.empty_like(tokens)
    candidates: list[torch.Tensor] = []
    candidate_log_probs: list[torch.Tensor] = []
    again: list[torch.Tensor] = []
    asked = torch.tensor(extra or [], dtype=torch.long, device=rows.device).expand(size, -1)

    run = lm.engine.start(prompts.prefix, rows, n)
    for i in range(n):
        logits = run.logits
        scores = penalise(logits, tokens[:, :i], limits.repetition_penalty).masked_fill(banned, -torch.inf)
        chosen = unbiased[:, i] = scores.argmax(-1)
        if bias is not None:
            chosen = (scores + bias(i, logits)).argmax(-1)

        lengths = torch.where((lengths > i) & torch.isin(chosen, eos), i, lengths)
        tokens[:, i] = torch.where(lengths > i, chosen, vocabulary.pad)

        best = logits.masked_fill(vocabulary.never_candidates, -torch.inf).topk(top_k).indices
        own = torch.cat([tokens[:, i : i + 1], asked, best], dim=-1)
        own_log_probs = logits.gather(-1, own) - logits.logsumexp(-1, keepdim=True)
        log_probs[:, i] = own_log_probs[:, 0].masked_fill(lengths <= i, 0.0)
        candidates.append(own)
        candidate_log_probs.append(own_log_probs)
        again.append(repeated(own, 1 + asked.shape[1]))
        if i + 1 < n:
            run.advance(tokens[:, i])
    owners = [prompts.prompts[row] for row in rows.tolist()]
    draft = lm.draft(owners, tokens, lengths, log_probs)
    return Rollout(
        draft, torch.stack(candidates, 1), torch.stack(candidate_log_probs, 1), torch.stack(again, 1), unbiased
    )


def repeated(candidates: torch.Tensor, first: int) -> torch.Tensor:
    """Which candidates [B, c] stand among the `first` ones before them already: bool [B, c]."""
    again = torch.zeros_like(candidates, dtype=torch.bool)
    for column in range(first):
        again[:, column + 1 :] |= candidates[:, column + 1 :] == candidates[:, column : column + 1]
    return again


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """CTRL's repetition penalty: logits of the tokens already generated move away from being chosen."""
    if penalty == 1.0 or seen.shape[1] == 0:
        return logits
    values = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(values > 0, values / penalty, values * penalty))
