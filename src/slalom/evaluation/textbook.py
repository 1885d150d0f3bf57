"""Drafts to the next drafts by DAB as the paper writes it, without any shortcut: what `slalom bench` compares with.

One-hots over the whole vocabulary, gradients with respect to all of them, distances [B, n, V], every step from the
prompt on. It knows the paper's knobs only; the tests hold that its tokens are those of `DAB` with the same knobs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn import functional as F

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import REPETITION_PENALTY
from slalom.constraints.table_classifier import TableClassifier
from slalom.decoding.bias import NORMS, SCHEDULES
from slalom.decoding.dab import DAB
from slalom.decoding.proposal import counters as counters_of
from slalom.decoding.randomness import Rng
from slalom.types import Prompt, Relaxed


class TextbookDraft(NamedTuple):
    """A batch of drafts and the LM's logits."""

    tokens: torch.Tensor  # [B, n]
    logits: torch.Tensor  # [B, n, V]


class Textbook(NamedTuple):
    """One problem: prompts of one length, a classifier that reads the LM's table, and the paper's knobs."""

    lm: LanguageModel
    constraint: TableClassifier
    prompts: list[Prompt]
    length: int
    sampler: DAB

    def first(self) -> TextbookDraft:
        """The LM's own greedy drafts."""
        return self._decode(None)

    def step(self, last: TextbookDraft, rng: Rng) -> TextbookDraft:
        """B | Y, then Y | B."""
        return self._decode(self._propose(last, rng))

    def _propose(self, last: TextbookDraft, rng: Rng) -> torch.Tensor:
        """Bias tokens [B, n] from the gradient at all one-hots; candidates outside the LM's top k masked."""
        size, batch = self.lm.vocabulary.size, len(self.prompts)
        with torch.enable_grad():
            hot = F.one_hot(last.tokens, size).float().requires_grad_()
            score = self.constraint.relaxed_score(Relaxed(self.lm.vocabulary, self.prompts, hot))
            (gradient,) = torch.autograd.grad(score.sum(), hot)
        log_weights = gradient * (1 - hot.detach()) / self.sampler.tau
        top = last.logits.masked_fill(self.lm.vocabulary.never_candidates, -torch.inf).topk(self.sampler.top_k)
        allowed = torch.zeros_like(log_weights, dtype=torch.bool).scatter(-1, top.indices, True)
        allowed |= hot.detach().bool()
        counters = counters_of(torch.arange(size), torch.arange(self.length)[:, None])
        noise = rng.gumbel(counters.expand(batch, -1, -1).to(log_weights.device))
        return (log_weights + noise).masked_fill(~allowed, -torch.inf).argmax(-1)

    @torch.inference_mode()
    def _decode(self, bias_tokens: torch.Tensor | None) -> TextbookDraft:
        """Biased greedy decoding from the prompts on, with the model's own cache."""
        vocabulary = self.lm.vocabulary
        inputs = torch.tensor([prompt.ids for prompt in self.prompts], device=self.lm.device)
        distances = None
        if bias_tokens is not None:
            table = vocabulary.embeddings.float()
            distances = torch.stack([torch.cdist(table[row], table).square() for row in bias_tokens])  # [B, n, V]
        tokens = torch.empty(len(inputs), 0, dtype=torch.long, device=inputs.device)
        all_logits, cache = [], None
        for i in range(self.length):
            out = self.lm.model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[:, -1].float()
            all_logits.append(logits)
            scores = logits.clone()
            if i:
                values = scores.gather(-1, tokens)
                penalised = torch.where(values > 0, values / REPETITION_PENALTY, values * REPETITION_PENALTY)
                scores.scatter_(-1, tokens, penalised)
            scores[:, vocabulary.banned_fixed] = -torch.inf
            if distances is not None:
                ratio = NORMS[self.sampler.norm](logits) / distances[:, i].norm(dim=-1)
                weight = self.sampler.weight * SCHEDULES[self.sampler.schedule](i, self.length)
                scores = scores - weight * ratio[:, None] * distances[:, i]
            inputs = scores.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, inputs], dim=1)
        return TextbookDraft(tokens, torch.stack(all_logits, 1))
