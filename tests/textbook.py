"""DAB, climb and rerank with nothing saved: one-hots, [n, V] distances, no cache, a row at a time, all from the prompt.

The reference the library is held against. Its constraint reads the LM's table, so that gradients at one-hots exist.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from slalom.backbone.model import LanguageModel
from slalom.constraints.table_classifier import TableClassifier
from slalom.decoding.climb import START_TOP_P, Climb
from slalom.decoding.dab import DAB
from slalom.decoding.drawing import Drawing
from slalom.decoding.proposal import POSITIONS
from slalom.decoding.randomness import Rng
from slalom.decoding.rerank import Rerank
from slalom.types import Prompt, Relaxed


class Written(NamedTuple):
    """One draft and what the LM said at each of its positions."""

    tokens: list[int]
    logits: torch.Tensor  # [n, V]


class Textbook(NamedTuple):
    """One row's problem."""

    lm: LanguageModel
    constraint: TableClassifier
    prompt: Prompt
    length: int

    def score(self, tokens: list[int]) -> float:
        """f, by one-hots."""
        return self.constraint.relaxed_score(self.relaxed(tokens)).item()

    def relaxed(self, tokens: list[int]) -> Relaxed:
        hot = torch.nn.functional.one_hot(torch.tensor(tokens), self.lm.vocabulary.size).float()[None]
        return Relaxed(self.lm.vocabulary, [self.prompt], hot.requires_grad_())

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """After the prompt and these tokens."""
        return self.lm.model(input_ids=torch.tensor([[*self.prompt.ids, *tokens]])).logits[0, -1].detach()

    def scores(self, logits: torch.Tensor, tokens: list[int]) -> torch.Tensor:
        """Logits after the repetition penalty, without what is never written."""
        scores = logits.clone()
        for token in set(tokens):
            scores[token] = scores[token] / 1.2 if scores[token] > 0 else scores[token] * 1.2
        scores[self.lm.vocabulary.banned_fixed] = -torch.inf
        return scores

    def favourites(self, written: Written, top_k: int) -> list[list[int]]:
        """The tokens the LM likes best at every position."""
        allowed = written.logits.masked_fill(self.lm.vocabulary.never_candidates, -torch.inf)
        return allowed.topk(top_k).indices.tolist()


def textbook_dab(book: Textbook, sampler: DAB, seed: int, steps: int) -> list[list[int]]:
    """The drafts of one row, step by step."""
    rng = Rng.from_seeds([seed], book.lm.device)
    written = _biased(book, sampler, None)
    drafts = [written.tokens]
    for step in range(2, steps + 1):
        written = _biased(book, sampler, _propose(book, sampler, written, rng.fold(step)))
        drafts.append(written.tokens)
    return drafts


def _biased(book: Textbook, sampler: DAB, bias_tokens: list[int] | None) -> Written:
    """Biased greedy decoding, every position from the whole text before it."""
    tokens: list[int] = []
    said = []
    factor = {"constant": lambda i: 1.0, "decreasing": lambda i: 1 - i / book.length}[sampler.schedule]
    for i in range(book.length):
        logits = book.logits(tokens)
        said.append(logits)
        scores = book.scores(logits, tokens)
        if bias_tokens is not None:
            table = book.lm.vocabulary.embeddings.float()
            away = (table[bias_tokens[i]] - table).square().sum(-1)
            ratio = (logits - logits.mean()).norm() / away.norm()
            scores = scores - sampler.weight * factor(i) * ratio * away
        tokens.append(int(scores.argmax()))
    return Written(tokens, torch.stack(said))


def _propose(book: Textbook, sampler: DAB, last: Written, rng: Rng) -> list[int]:
    """The proposal over the whole vocabulary, everything masked but the top k and the current token."""
    relaxed = book.relaxed(last.tokens)
    (gradient,) = torch.autograd.grad(book.constraint.relaxed_score(relaxed).sum(), relaxed.mixtures)
    scores, current = gradient[0].clone(), torch.tensor(last.tokens)
    places = torch.arange(book.length)
    if sampler.scores == "difference":
        scores -= gradient[0].gather(-1, current[:, None])
    scores[places, current] = 0.0
    allowed = torch.zeros_like(scores, dtype=torch.bool)
    allowed.scatter_(-1, torch.tensor(book.favourites(last, sampler.top_k)), True)
    allowed[places, current] = True
    counters = torch.arange(scores.shape[1]) * POSITIONS + places[:, None]
    noisy = scores / sampler.tau + sampler.lm_weight * last.logits.log_softmax(-1) + rng.gumbel(counters[None])[0]
    return noisy.masked_fill(~allowed, -torch.inf).argmax(-1).tolist()


def textbook_climb(book: Textbook, sampler: Climb, seed: int, steps: int) -> list[list[int]]:
    """The best draft of every step of one row."""
    rng = Rng.from_seeds([seed], book.lm.device)
    drawings = [
        Drawing(torch.tensor([sampler.start]), torch.tensor([START_TOP_P]), rng.fold(0).fold(number))
        for number in range(sampler.width)
    ]
    firsts = [_continued(book, [], drawing) for drawing in (drawings if seed else [None])]
    origin = max(firsts, key=lambda one: _objective(book, one))
    drafts, tried = [origin.tokens], set()
    for step in range(2, steps + 1):
        moves = _moves(book, sampler, origin, tried, rng.fold(step))
        tried |= set(moves)
        latest = max(
            (_continued(book, [*origin.tokens[:i], token], None) for i, token in moves),
            key=lambda one: _objective(book, one),
        )
        drafts.append(latest.tokens)
        if _objective(book, latest) > _objective(book, origin):
            origin, tried = latest, set()
    return drafts


def _continued(book: Textbook, tokens: list[int], drawing: Drawing | None) -> Written:
    """The rest of a text, greedily or drawn."""
    said = []
    given, tokens = len(tokens), list(tokens)
    for i in range(book.length):
        logits = book.logits(tokens[:i])
        said.append(logits)
        if i >= given:
            scores = book.scores(logits, tokens)
            if drawing is not None:
                scores = drawing.draw(torch.tensor([i]), torch.tensor([0]), scores[None])[0]
            tokens.append(int(scores.argmax()))
    return Written(tokens, torch.stack(said))


def _objective(book: Textbook, written: Written) -> float:
    log_probs = written.logits.log_softmax(-1)[torch.arange(book.length), torch.tensor(written.tokens)]
    return min(book.score(written.tokens), 4.6) + log_probs.mean().item()


def _moves(
    book: Textbook, sampler: Climb, origin: Written, tried: set[tuple[int, int]], rng: Rng
) -> list[tuple[int, int]]:
    """A shortlist by the LM's opinion, each of it put in and scored; the best few of those."""
    log_probs = origin.logits.log_softmax(-1)

    def noise(stream: Rng, i: int, token: int) -> float:
        return stream.gumbel(torch.tensor([[token * POSITIONS + i]])).item()

    ahead = []
    for i, (current, favourites) in enumerate(zip(origin.tokens, book.favourites(origin, sampler.top_k), strict=True)):
        staying = sampler.lm_weight * float(log_probs[i, current]) + noise(rng, i, current)
        for token in favourites:
            if token != current and (i, token) not in tried:
                weight = sampler.lm_weight * float(log_probs[i, token]) + noise(rng, i, token)
                ahead.append((weight - staying, i, token))
    looked = sorted(ahead, reverse=True)[: sampler.looks]
    f = torch.tensor([book.score([*origin.tokens[:i], token]) for _, i, token in looked])
    weights = ((f - f.mean()) / f.std() / sampler.tau).tolist()
    scored = [
        (weight + sampler.lm_weight * float(log_probs[i, token]) + noise(rng.fold(1), i, token), i, token)
        for weight, (_, i, token) in zip(weights, looked, strict=True)
    ]
    return [(i, token) for _, i, token in sorted(scored, reverse=True)[: sampler.width]]


def textbook_rerank(book: Textbook, sampler: Rerank, drawing: Drawing | None = None) -> list[int]:
    """FUDGE's formula: at every position log p of the token plus weight times log p of the wish with it put in."""
    tokens: list[int] = []
    for i in range(book.length):
        log_probs = book.scores(book.logits(tokens), tokens).log_softmax(-1)
        tilted = torch.full_like(log_probs, -torch.inf)
        for token in log_probs.topk(sampler.top_k).indices.tolist():
            f = torch.tensor(book.score([*tokens, token]))
            said = f.sigmoid().log() if sampler.measure == "log-probability" else f
            tilted[token] = log_probs[token] + sampler.weight * said
        if drawing is not None:
            tilted = drawing.draw(torch.tensor([i]), torch.tensor([0]), tilted[None])[0]
        tokens.append(int(tilted.argmax()))
    return tokens
