"""DAB with nothing saved: one-hots, full-vocabulary gradients, [n, V] distances, no cache, one row at a time.

The reference the library is held against. Its constraint reads the LM's table, so that gradients at one-hots exist.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from slalom.backbone.model import LanguageModel
from slalom.constraints.table_classifier import TableClassifier
from slalom.decoding.dab import DAB
from slalom.decoding.randomness import Rng
from slalom.types import Prompt, Relaxed


class Written(NamedTuple):
    """One draft and what the LM said at each of its positions."""

    tokens: list[int]
    logits: torch.Tensor  # [n, V]
    greedy: list[int]  # what it would have written without the bias


def textbook_dab(
    lm: LanguageModel, constraint: TableClassifier, text: str, sampler: DAB, seed: int, steps: int, length: int
) -> list[list[int]]:
    """The drafts of one row, step by step."""
    rng = Rng.from_seeds([seed], lm.device)
    prompt = lm.encode(text, length)
    latest = origin = _write(lm, prompt, length, sampler, None, [], 0.0)
    drafts, worth = [latest.tokens], -float("inf")
    tried: list[tuple[int, int]] = []  # single moves from this origin
    for step in range(2, steps + 1):
        new = _worth(lm, constraint, prompt, sampler, latest)
        if not sampler.climb or new > worth:
            origin, worth, tried = latest, new, []
        bias_tokens = _propose(lm, constraint, prompt, sampler, origin, tried, rng.fold(step))
        tried += [(i, token) for i, token in enumerate(bias_tokens) if token != origin.tokens[i]]
        acts = {
            "all": [True] * length,
            "moved": [b != y for b, y in zip(bias_tokens, origin.tokens, strict=True)],
            "own": [b != y for b, y in zip(bias_tokens, origin.greedy, strict=True)],
        }[sampler.hold]
        moves = [i for i in range(length) if bias_tokens[i] != origin.tokens[i]]
        kept = origin.tokens[: min(moves, default=length)] if sampler.keep else []
        latest = _write(lm, prompt, length, sampler, bias_tokens, acts, sampler.growth ** (step - 2), kept)
        drafts.append(latest.tokens)
    return drafts


def _write(
    lm: LanguageModel,
    prompt: Prompt,
    length: int,
    sampler: DAB,
    bias_tokens: list[int] | None,
    acts: list[bool],
    urgency: float,
    kept: list[int] | tuple[int, ...] = (),
) -> Written:
    """Biased greedy decoding, every position from the whole text before it; the first ones may be given."""
    tokens: list[int] = []
    greedy: list[int] = []
    logits = torch.zeros(length, lm.vocabulary.size)
    factor = {"constant": lambda i: 1.0, "decreasing": lambda i: 1 - i / length}[sampler.schedule]
    for i in range(length):
        ids = torch.tensor([[*prompt.ids, *tokens]])
        logits[i] = lm.model(input_ids=ids).logits[0, -1].detach()
        scores = logits[i].clone()
        for token in set(tokens):
            scores[token] = scores[token] / 1.2 if scores[token] > 0 else scores[token] * 1.2
        scores[lm.vocabulary.banned_fixed] = -torch.inf
        greedy.append(int(scores.argmax()))
        if bias_tokens is not None and acts[i]:
            table = lm.vocabulary.embeddings.float()
            away = (table[bias_tokens[i]] - table).square().sum(-1)
            ratio = (logits[i] - logits[i].mean()).norm() / away.norm()
            scores = scores - sampler.weight * urgency * factor(i) * ratio * away
        tokens.append(kept[i] if i < len(kept) else int(scores.argmax()))
    return Written(tokens, logits, greedy)


def _relaxed(lm: LanguageModel, prompt: Prompt, tokens: list[int]) -> Relaxed:
    hot = torch.nn.functional.one_hot(torch.tensor(tokens), lm.vocabulary.size).float()[None]
    return Relaxed(lm.vocabulary, [prompt], hot.requires_grad_())


def _worth(lm: LanguageModel, constraint: TableClassifier, prompt: Prompt, sampler: DAB, written: Written) -> float:
    f = constraint.relaxed_score(_relaxed(lm, prompt, written.tokens)).item()
    log_probs = written.logits.log_softmax(-1)[torch.arange(len(written.tokens)), torch.tensor(written.tokens)]
    return min(f, sampler.enough) + sampler.fluency * log_probs.mean().item()


def _propose(
    lm: LanguageModel,
    constraint: TableClassifier,
    prompt: Prompt,
    sampler: DAB,
    origin: Written,
    tried: list[tuple[int, int]],
    rng: Rng,
) -> list[int]:
    """The proposal over the whole vocabulary, everything masked but the top k and the current token."""
    relaxed = _relaxed(lm, prompt, origin.tokens)
    (gradient,) = torch.autograd.grad(constraint.relaxed_score(relaxed).sum(), relaxed.mixtures)
    gradient, n = gradient[0], len(origin.tokens)
    current = torch.tensor(origin.tokens)
    favourites = origin.logits.masked_fill(lm.vocabulary.never_candidates, -torch.inf).topk(sampler.top_k).indices
    scores = gradient.clone()
    if sampler.scores != "gradient":
        scores -= gradient.gather(-1, current[:, None])
    if sampler.scores == "normalised":
        scores /= scores.gather(-1, torch.cat([current[:, None], favourites], -1)).std()
    scores[torch.arange(n), current] = 0.0
    allowed = torch.zeros(n, lm.vocabulary.size, dtype=torch.bool).scatter(-1, favourites, True)
    allowed[torch.arange(n), current] = True
    counters = torch.arange(lm.vocabulary.size) * n + torch.arange(n)[:, None]
    noisy = scores / sampler.tau + sampler.lm_weight * origin.logits.log_softmax(-1) + rng.gumbel(counters[None])[0]
    if sampler.moves == 1:
        for position, token in tried:
            allowed[position, token] = False
    noisy = noisy.masked_fill(~allowed, -torch.inf)
    if sampler.moves == 1 and sampler.looks > 1:
        return _look(lm, constraint, prompt, sampler, origin, noisy, rng.fold(1))
    best = noisy.max(-1)
    lead = best.values - noisy[torch.arange(n), current]
    moving = lead.argsort(descending=True)[: sampler.moves or n].tolist()
    return [int(best.indices[i]) if i in moving else origin.tokens[i] for i in range(n)]


def _look(
    lm: LanguageModel,
    constraint: TableClassifier,
    prompt: Prompt,
    sampler: DAB,
    origin: Written,
    noisy: torch.Tensor,
    rng: Rng,
) -> list[int]:
    """The moves furthest ahead of staying, each put into the text so far and scored; one of them sampled."""
    n = len(origin.tokens)
    ahead = []
    for i, current in enumerate(origin.tokens):
        for token in noisy[i].isfinite().nonzero()[:, 0].tolist():
            if token != current:
                ahead.append((float(noisy[i, token] - noisy[i, current]), i, token))
    moves = sorted(ahead, reverse=True)[: sampler.looks]
    beginnings = [_relaxed(lm, prompt, [*origin.tokens[:i], token]) for _, i, token in moves]
    f = torch.tensor([constraint.relaxed_score(beginning).item() for beginning in beginnings])
    weights = (f - f.mean()) / f.std() / sampler.tau
    log_probs = origin.logits.log_softmax(-1)
    scored = []
    for weight, (_, i, token) in zip(weights.tolist(), moves, strict=True):
        noise = rng.gumbel(torch.tensor([[token * n + i]])).item()
        scored.append((weight + sampler.lm_weight * float(log_probs[i, token]) + noise, i, token))
    _, i, token = max(scored)
    return [*origin.tokens[:i], token, *origin.tokens[i + 1 :]]
