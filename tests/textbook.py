"""DAB as the paper writes it, with nothing saved: one-hots, full-vocabulary gradients, [B, n, V] distances, no cache.

The reference the library is held against. One row at a time; the constraint reads the LM's table.
"""

from __future__ import annotations

import torch

from slalom.backbone.model import LanguageModel
from slalom.constraints.table_classifier import TableClassifier
from slalom.decoding.dab import DAB
from slalom.decoding.randomness import Rng
from slalom.types import Relaxed


def textbook_dab(
    lm: LanguageModel, constraint: TableClassifier, prompt: str, sampler: DAB, seed: int, steps: int, length: int
) -> list[list[int]]:
    """The drafts of one row, step by step."""
    rng = Rng.from_seeds([seed], lm.device)
    encoded = lm.encode(prompt, length)
    drafts: list[list[int]] = []
    bias_tokens = acts = torch.zeros(length, dtype=torch.long)
    for step in range(1, steps + 1):
        tokens: list[int] = []
        logits = torch.zeros(length, lm.vocabulary.size)
        greedy = torch.zeros(length, dtype=torch.long)
        for i in range(length):
            ids = torch.tensor([[*encoded.ids, *tokens]])
            logits[i] = lm.model(input_ids=ids).logits[0, -1].detach()
            scores = _penalised(logits[i], tokens)
            scores[lm.vocabulary.banned_fixed] = -torch.inf
            greedy[i] = scores.argmax()
            if step > 1 and acts[i]:
                urgency = sampler.growth ** (step - 2)
                scores = scores - _weight(sampler, i, length) * urgency * _bias(lm, logits[i], bias_tokens[i])
            tokens.append(int(scores.argmax()))
        drafts.append(tokens)

        hot = torch.nn.functional.one_hot(torch.tensor(tokens), lm.vocabulary.size).float()[None].requires_grad_()
        f = constraint.relaxed_score(Relaxed(lm.vocabulary, [encoded], hot))
        (gradient,) = torch.autograd.grad(f.sum(), hot)
        bias_tokens = _propose(
            lm, sampler, gradient[0], logits, tokens, rng.fold(step + 1), sampler.growth ** (step - 1)
        )
        acts = {
            "all": torch.ones(length, dtype=torch.bool),
            "moved": bias_tokens != torch.tensor(tokens),
            "own": bias_tokens != greedy,
        }[sampler.hold]
    return drafts


def _penalised(logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    out = logits.clone()
    for token in set(tokens):
        out[token] = logits[token] / 1.2 if logits[token] > 0 else logits[token] * 1.2
    return out


def _weight(sampler: DAB, i: int, length: int) -> float:
    return sampler.weight * {"constant": 1.0, "decreasing": 1 - i / length, "increasing": i / length}[sampler.schedule]


def _bias(lm: LanguageModel, logits: torch.Tensor, bias_token: torch.Tensor) -> torch.Tensor:
    table = lm.vocabulary.embeddings.float()
    away = (table[bias_token] - table).square().sum(-1)
    return (logits - logits.mean()).norm() / away.norm() * away


def _propose(
    lm: LanguageModel,
    sampler: DAB,
    gradient: torch.Tensor,
    logits: torch.Tensor,
    tokens: list[int],
    rng: Rng,
    urgency: float,
) -> torch.Tensor:
    """Eq. 8 over the whole vocabulary, everything but the top k masked."""
    chosen = []
    for i, current in enumerate(tokens):
        entries = gradient[i]
        score = entries - entries[current] if sampler.scores == "difference" else entries.clone()
        score[current] = 0.0
        weights = urgency * score / sampler.tau + sampler.lm_weight * logits[i].log_softmax(-1)
        weights[current] += sampler.stay
        allowed = torch.zeros(lm.vocabulary.size, dtype=torch.bool)
        allowed[logits[i].masked_fill(lm.vocabulary.never_candidates, -torch.inf).topk(sampler.top_k).indices] = True
        allowed[current] = True
        noise = rng.gumbel(torch.arange(lm.vocabulary.size)[None] * len(tokens) + i)[0]
        chosen.append(int((weights + noise).masked_fill(~allowed, -torch.inf).argmax()))
    return torch.tensor(chosen)
