"""Prompts to a draft: n tokens a row, each the best by the logits and whatever bias is passed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from slalom.backbone.ending import before_stop, tokens_for, whole_sentences
from slalom.types import Draft, Prompt

if TYPE_CHECKING:
    from slalom.backbone.engine import Memory, Prefix
    from slalom.backbone.model import LanguageModel

REPETITION_PENALTY = 1.2

# A position, the rows at it [a] and their logits [a, V] → which of those rows are biased [b], and what to add [b, V].
Bias = Callable[[int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# A position, some rows at it [a] and their scores [a, V] → scores whose best token is the one drawn, [a, V].
Draw = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]


class Prompts(NamedTuple):
    """Different prompts the engine has read, ready to be continued many times."""

    prompts: list[Prompt]
    prefix: Prefix


class Rollout(NamedTuple):
    """A draft, and at every position its candidates: the token itself, extra ones asked for, the LM's k favourites."""

    draft: Draft
    memory: Memory  # the engine's, to go on from any position
    candidates: torch.Tensor  # [B, n, c]
    log_probs: torch.Tensor  # [B, n, c], the LM's before any bias
    repeated: torch.Tensor  # bool [B, n, c], a candidate that stands there already
    unbiased: torch.Tensor  # [B, n], what would have been chosen without the bias

    def where(self, take: torch.Tensor, other: Rollout) -> Rollout:
        """This rollout's rows where `take` says so, bool [B], the other's elsewhere; its memory is reused for that."""
        pairs = zip(self[2:], other[2:], strict=True)
        merged = (torch.where(take.view(-1, *[1] * (mine.dim() - 1)), mine, their) for mine, their in pairs)
        return Rollout(self.draft.where(take, other.draft), self.memory.where(take, other.memory), *merged)

    def select(self, rows: list[int] | torch.Tensor) -> Rollout:
        """Only these rows, in this order."""
        return Rollout(self.draft.select(rows), self.memory.select(rows), *(tensor[rows] for tensor in self[2:]))


class Forbidden(NamedTuple):
    """What may never be written."""

    tokens: torch.Tensor  # bool [V], never proposed
    written: Callable[[Prompt, list[int]], bool]  # whether a prompt's continuation holds anything forbidden


class Limits(NamedTuple):
    """How far and under which rules a rollout goes; the same for every sampler."""

    length: int
    free: bool = False  # free length: EOS ends a row, line breaks are allowed
    repetition_penalty: float = REPETITION_PENALTY  # on generated tokens
    forbidden: Forbidden | None = None
    stops: tuple[str, ...] = ()  # a text ends before the first of these
    whole: bool = False  # a text that reaches the length ends after its last whole sentence


class Resumed(NamedTuple):
    """An earlier rollout, and the position from which each row is written anew."""

    origin: Rollout
    starts: torch.Tensor  # [B]


@torch.inference_mode()
def rollout(
    lm: LanguageModel,
    prompts: Prompts,
    rows: torch.Tensor,
    limits: Limits,
    bias: Bias | None = None,
    top_k: int = 0,
    extra: list[int] | None = None,
    resumed: Resumed | None = None,
    draw: Draw | None = None,
) -> Rollout:
    """Continue prompt `rows[i]` in row i, greedily or as `draw` says, adding `bias` to the logits of each position."""
    n, vocabulary = limits.length, lm.vocabulary
    banned = vocabulary.banned_free if limits.free else vocabulary.banned_fixed
    never = vocabulary.never_candidates
    if limits.forbidden is not None:
        never = never | limits.forbidden.tokens
    asked = torch.tensor(extra or [], dtype=torch.long, device=rows.device)
    eos = torch.tensor(vocabulary.eos, device=rows.device)
    if resumed is None:
        order, starts = torch.arange(len(rows), device=rows.device), torch.zeros_like(rows)
        out, memory = _blank(len(rows), n, 1 + len(asked) + top_k, vocabulary.pad, rows.device), None
    else:
        order = resumed.starts.argsort(stable=True)  # so that the rows at a position are always the first ones
        starts = resumed.starts[order]
        out, memory = _copy(resumed.origin, order, starts), resumed.origin.memory.select(order)

    owners = [prompts.prompts[row] for row in rows.tolist()]

    def choose(scores: torch.Tensor, which: torch.Tensor, i: int) -> torch.Tensor:
        """The best token of some rows at position i, or the one drawn."""
        if draw is not None:
            scores = draw(i, order[which], scores)
        if limits.forbidden is None:
            return scores.argmax(-1)
        heads = [owners[row] for row in order[which].tolist()]
        return best_allowed(scores, heads, out.tokens[which, :i].tolist(), limits.forbidden)

    run = lm.engine.start(prompts.prefix, rows[order], n, memory)
    active = [int((starts <= i).sum()) for i in range(n)]  # rows written at each position
    for i in range(int(starts.min()) if len(starts) else n, n):
        a = active[i]
        logits = run.read(i - 1, out.tokens[:, i - 1], a) if i else prompts.prefix.logits[rows[order[:a]]]
        scores = penalise(logits, out.tokens[:a, :i], limits.repetition_penalty).masked_fill(banned, -torch.inf)
        chosen = choose(scores, torch.arange(a, device=rows.device), i)
        out.unbiased[:a, i] = chosen
        if bias is not None:
            biased, vectors = bias(i, order[:a], logits)
            chosen[biased] = choose(scores[biased] + vectors, biased, i)

        lengths = out.lengths[:a]
        ends = (lengths > i) & torch.isin(chosen, eos)
        lengths[ends] = i
        out.ended[:a] |= ends
        out.tokens[:a, i] = chosen

        best = logits.masked_fill(never, -torch.inf).topk(top_k).indices
        own = torch.cat([out.tokens[:a, i, None], asked.expand(a, -1), best], dim=-1)
        out.candidates[:a, i] = own
        out.candidate_log_probs[:a, i] = logits.gather(-1, own) - logits.logsumexp(-1, keepdim=True)
        out.log_probs[:a, i] = out.candidate_log_probs[:a, i, 0]
        if (out.lengths <= i).all():
            break
    back = order.argsort()
    written = (out.tokens[back], out.lengths[back], out.log_probs[back], out.ended[back])
    draft = finished(lm, owners, *written, limits)
    candidates = out.candidates[back]
    candidates[..., 0] = draft.tokens
    again = repeated(candidates, 1 + len(asked))
    memory = run.memory if resumed is None else run.memory.reorder(back)
    return Rollout(draft, memory, candidates, out.candidate_log_probs[back], again, out.unbiased[back])


def finished(
    lm: LanguageModel,
    prompts: list[Prompt],
    tokens: torch.Tensor,
    lengths: torch.Tensor,
    log_probs: torch.Tensor,
    ended: torch.Tensor,
    limits: Limits,
) -> Draft:
    """Tokens [B, n] as they were written to a draft that ends where the limits say; past its end is padding."""
    draft = lm.draft(prompts, tokens, lengths, log_probs, ended)
    if limits.stops or limits.whole:
        draft = _cut(draft, limits)
    past = torch.arange(tokens.shape[1], device=tokens.device) >= (draft.lengths + draft.ended)[:, None]
    return draft._replace(tokens=tokens.masked_fill(past, lm.vocabulary.pad), log_probs=log_probs.masked_fill(past, 0))


def _cut(draft: Draft, limits: Limits) -> Draft:
    """Each row up to its first stop string or, if it ran into the limit, its last whole sentence."""
    lengths, ended = draft.lengths.clone(), draft.ended.clone()
    texts, n = list(draft.texts), draft.tokens.shape[1]
    for row, text in enumerate(texts):
        end = before_stop(text, limits.stops)
        if end is None and limits.whole and lengths[row] == n:
            end = whole_sentences(text)
        if end is not None:
            tokens = draft.tokens[row, : lengths[row]].tolist()
            lengths[row] = tokens_for(draft.vocabulary, draft.prompts[row], tokens, end)
            texts[row], ended[row] = text[:end], False
    return draft._replace(lengths=lengths, texts=texts, ended=ended)


class _Written(NamedTuple):
    """What a rollout fills in, position by position."""

    tokens: torch.Tensor  # [B, n]
    lengths: torch.Tensor  # [B]
    ended: torch.Tensor  # bool [B]
    log_probs: torch.Tensor  # [B, n]
    unbiased: torch.Tensor  # [B, n]
    candidates: torch.Tensor  # [B, n, c]
    candidate_log_probs: torch.Tensor  # [B, n, c]


def _blank(size: int, n: int, candidates: int, pad: int, device: torch.device) -> _Written:
    tokens = torch.full((size, n), pad, device=device)
    return _Written(
        tokens,
        torch.full((size,), n, device=device),
        torch.zeros(size, dtype=torch.bool, device=device),
        torch.zeros(size, n, device=device),
        tokens.clone(),
        torch.zeros(size, n, candidates, dtype=torch.long, device=device),
        torch.zeros(size, n, candidates, device=device),
    )


def _copy(origin: Rollout, order: torch.Tensor, starts: torch.Tensor) -> _Written:
    """What stands before the starts is kept; a row written anew may be longer than it was."""
    draft, n = origin.draft, origin.draft.tokens.shape[1]
    again = starts <= draft.lengths[order]
    return _Written(
        draft.tokens[order],
        torch.where(again, n, draft.lengths[order]),
        draft.ended[order] & ~again,
        draft.log_probs[order],
        origin.unbiased[order],
        origin.candidates[order],
        origin.log_probs[order],
    )


def best_allowed(
    scores: torch.Tensor, prompts: list[Prompt], before: list[list[int]], forbidden: Forbidden
) -> torch.Tensor:
    """Of scores [B, V] each row's best token that, after the tokens before it, writes nothing forbidden: [B]."""
    chosen = scores.argmax(-1)
    for row, (prompt, tokens) in enumerate(zip(prompts, before, strict=True)):
        if forbidden.written(prompt, [*tokens, int(chosen[row])]):
            order = scores[row].argsort(descending=True).tolist()
            chosen[row] = next(token for token in order if not forbidden.written(prompt, [*tokens, token]))
    return chosen


def repeated(candidates: torch.Tensor, first: int) -> torch.Tensor:
    """Which candidates [..., c] stand among the `first` ones before them already: bool [..., c]."""
    again = torch.zeros_like(candidates, dtype=torch.bool)
    for column in range(first):
        again[..., column + 1 :] |= candidates[..., column + 1 :] == candidates[..., column, None]
    return again


def penalise(logits: torch.Tensor, seen: torch.Tensor, penalty: float) -> torch.Tensor:
    """CTRL's repetition penalty: logits of the tokens already generated move away from being chosen."""
    if penalty == 1.0 or seen.shape[1] == 0:
        return logits
    values = logits.gather(-1, seen)
    return logits.scatter(-1, seen, torch.where(values > 0, values / penalty, values * penalty))
