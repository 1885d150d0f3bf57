"""Constrained decoding with Langevin dynamics: soft logits moved by the LM and f, read off left to right.

The energy of logits y [n, V] is (1 - w) F - w f. F is the mean cross-entropy of softmax(y) with the LM's probabilities
among its k favourites, which are not differentiated; f reads the likeliest of those tokens, straight-through.

Where we leave the original: the LM reads one-hots, not a softmax at temperature 0.001, so that what both say hangs
on the tokens alone and is asked anew only where one of them changed; and no second LM reads from right to left (its rho
is 1), since hardly any model has such a twin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch

from slalom.backbone.rollout import penalise, repeated, rollout
from slalom.constraints.constraint import Constraint
from slalom.decoding.knobs import knob
from slalom.decoding.randomness import Rng
from slalom.decoding.relaxation import entries_at
from slalom.decoding.sampler import Preset, Problem, Stop
from slalom.types import Draft

BETAS = (0.9, 0.999)  # Adam's
TINY = 1e-8  # Adam's epsilon
FAR = 1e6  # puts the tokens that may not be read off below all others, in the LM's order

# The original's noise: until which iteration it has which size, and its size from then on.
NOISES: dict[str, tuple[tuple[float, float], ...]] = {
    "counterfactual": ((50, 0.5), (200, 0.1), (500, 0.05), (math.inf, 0.01)),
    "lexical": ((50, 1.0), (500, 0.5), (1000, 0.1), (1500, 0.05), (math.inf, 0.01)),
}
STARTS = ("soft", "drawn")
AUTHORS = 2000  # iterations of the original


class Opinion(NamedTuple):
    """What the LM and f say of a text, at the tokens that count at each position: f's, then the LM's favourites."""

    tokens: torch.Tensor  # [B, n], the text
    candidates: torch.Tensor  # [B, n, c]
    targets: torch.Tensor  # [B, n, c], the LM's probabilities among them; 0 for one that stands there already
    entries: torch.Tensor  # [B, n, c], f's gradient

    def select(self, rows: list[int] | torch.Tensor) -> Opinion:
        """Only these rows."""
        return Opinion(*(tensor[rows] for tensor in self))

    def put(self, rows: torch.Tensor, other: Opinion) -> Opinion:
        """With another opinion in these rows."""
        return Opinion(*(mine.index_copy(0, rows, new) for mine, new in zip(self, other, strict=True)))


class COLDState(NamedTuple):
    """The logits with Adam's moments, what is thought of them, and the draft last read off."""

    logits: torch.Tensor  # [B, n, V]; minus infinity at what may never be written
    mean: torch.Tensor  # [B, n, V], of the gradient
    square: torch.Tensor  # [B, n, V], of the gradient
    opinion: Opinion
    scale: torch.Tensor  # [B], standard deviation of the LM's logits after the prompt
    draft: Draft
    iterations: int

    def select(self, rows: list[int]) -> COLDState:
        """Only these rows."""
        return COLDState(
            self.logits[rows],
            self.mean[rows],
            self.square[rows],
            self.opinion.select(rows),
            self.scale[rows],
            self.draft.select(rows),
            self.iterations,
        )


@dataclass(frozen=True)
class COLD:
    """Soft logits of the whole text, moved by Adam and noise, then read off among the LM's favourites."""

    name: ClassVar[str] = "cold"
    paper: ClassVar[str] = "Qin, Welleck, Khashabi and Choi, NeurIPS 2022"
    cost: ClassVar[str] = "`inner` times an LM pass over the whole text and a gradient of f at it, then a rollout"
    mixes: ClassVar[bool] = False
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    weight: float = knob(0.7, "share of f in the energy, from 0 to 1; the LM's fluency has the rest", least=0)
    top_k: int = knob(5, "tokens of each position that count: those the LM likes best, besides f's own", least=1)
    lr: float = knob(0.1, "Adam's step, in standard deviations of the LM's logits", least=0)
    noise: float = knob(1.0, "factor on the noise, which is in standard deviations of the LM's logits", least=0)
    anneal: str = knob("counterfactual", "how the noise falls over the original's iterations", choices=NOISES)
    pace: float = knob(1.0, "iterations of the original's annealing that one of ours counts for", least=1e-6)
    tau: float = knob(1.0, "temperature of the softmax through which f's gradient reaches the logits", least=1e-6)
    inner: int = knob(50, "iterations in a step, after which the text is read off", least=1)
    start: str = knob(
        "soft",
        "the first logits: after the LM's own mixtures, or along a rollout (drawn by --temperature)",
        choices=STARTS,
    )
    start_temperature: float = knob(1.0, "temperature of those mixtures", least=1e-6)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Ours, 80 to 150 iterations on a faster annealing; what DAB's paper compares with, 400; the authors' 2,000.

        The authors have no settings for a classifier: `authors` has their iterations and annealing, and our weights.
        """
        long = 1 + AUTHORS // cls().inner
        if constraint.kind == "words":
            own = cls(weight=0.1, inner=10, pace=8.0)  # words are let in anyway: more of f only costs fluency
            return {
                "default": Preset(own, steps=9, stop=Stop(1.0)),
                "paper": Preset(cls(weight=0.5), steps=9),
                "authors": Preset(cls(weight=0.1, anneal="lexical"), long, stop=Stop(1.0)),
            }
        return {
            "default": Preset(cls(inner=10, pace=4.0), steps=16, choice="joint"),
            "paper": Preset(cls(), steps=9),
            "authors": Preset(cls(), long, choice="joint"),
        }

    def stronger(self, strength: float) -> Self:
        """f's share against the rest times the strength."""
        share = strength * self.weight
        return replace(self, weight=share / max(1 - self.weight + share, TINY))

    def init(self, problem: Problem, rng: Rng) -> COLDState:
        """The first logits, and what the LM and f think of their likeliest tokens."""
        logits = self._soft_start(problem) if self.start == "soft" else self._drawn_start(problem)
        opinion = self._ask(problem, logits.argmax(-1))
        scale = problem.prompts.prefix.logits[problem.rows].std(-1)
        nothing = torch.zeros_like(logits)
        return COLDState(logits, nothing, nothing, opinion, scale, self._read_off(problem, logits), 0)

    @torch.no_grad()
    def step(self, problem: Problem, state: COLDState, rng: Rng) -> COLDState:
        """Several iterations: down the energy by Adam, noise, and what is thought of the new tokens."""
        logits, mean, square = state.logits.clone(), state.mean.clone(), state.square.clone()
        opinion, scale = state.opinion, state.scale[:, None, None]
        for iteration in range(state.iterations, state.iterations + self.inner):
            move = adam(self._gradient(logits, opinion), mean, square, iteration + 1)
            logits.addcmul_(move, self.lr * scale, value=-1)
            noise = rng.fold(iteration).normals(*logits.shape[1:])
            logits.addcmul_(noise, self._noise(iteration) * scale)
            opinion = self._asked_again(problem, logits, opinion)
        iterations = state.iterations + self.inner
        return COLDState(logits, mean, square, opinion, state.scale, self._read_off(problem, logits), iterations)

    def read(self, problem: Problem, state: COLDState) -> Draft:
        """The text the step ended with."""
        return state.draft

    def _gradient(self, logits: torch.Tensor, opinion: Opinion) -> torch.Tensor:
        """Of the energy: softmax(y) - p for the fluency; for f its entries through a softmax of the candidates."""
        gradient = logits.softmax(-1).scatter_add_(-1, opinion.candidates, -opinion.targets)
        gradient *= (1 - self.weight) / logits.shape[1]
        own = (logits.gather(-1, opinion.candidates) / self.tau).masked_fill(opinion.targets == 0, -torch.inf)
        shares = own.softmax(-1)
        ahead = opinion.entries - (shares * opinion.entries).sum(-1, keepdim=True)
        return gradient.scatter_add_(-1, opinion.candidates, -self.weight / self.tau * shares * ahead)

    def _noise(self, iteration: int) -> float:
        """Its size, in standard deviations of the LM's logits."""
        place = iteration * self.pace
        return self.noise * next(size for end, size in NOISES[self.anneal] if place < end)

    def _asked_again(self, problem: Problem, logits: torch.Tensor, last: Opinion) -> Opinion:
        """The opinion on the likeliest of the candidates, computed only for rows where that is another text."""
        best = logits.gather(-1, last.candidates).argmax(-1, keepdim=True)
        tokens = last.candidates.gather(-1, best)[..., 0]
        rows = (tokens != last.tokens).any(-1).nonzero()[:, 0]
        return last.put(rows, self._ask(problem.select(rows), tokens[rows])) if len(rows) else last

    @torch.no_grad()
    def _ask(self, problem: Problem, tokens: torch.Tensor) -> Opinion:
        """What the LM, under the rules of every rollout, and f think of a text [B, n]."""
        lm, prompts = problem.lm, problem.owners
        logits = lm.continued(prompts, lm.embed(tokens)).logits
        for i in range(tokens.shape[1]):
            logits[:, i] = penalise(logits[:, i], tokens[:, :i], problem.limits.repetition_penalty)
        logits.masked_fill_(_never(problem), -torch.inf)
        named = _named(problem)
        best = logits.topk(self.top_k).indices
        candidates = torch.cat([named.expand(*tokens.shape, -1), best], dim=-1)
        values = logits.gather(-1, candidates).masked_fill(repeated(candidates, len(named)), -torch.inf)
        targets = values.softmax(-1).clamp(min=1e-30).masked_fill(values == -torch.inf, 0.0)
        entries = entries_at(problem.constraint, lm.vocabulary, prompts, tokens).gather(-1, candidates)
        return Opinion(tokens, candidates, targets, entries)

    def _read_off(self, problem: Problem, logits: torch.Tensor) -> Draft:
        """Left to right, the highest logit among f's tokens and the LM's favourites after the tokens chosen so far."""
        named = _named(problem)

        def pick(at: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            allowed = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, scores.topk(self.top_k).indices, True)
            allowed[:, named] = True
            return torch.where(allowed & scores.isfinite(), logits[rows, at], scores - FAR)

        return rollout(problem.lm, problem.prompts, problem.rows, problem.limits, draw=pick).draft

    @torch.no_grad()
    def _soft_start(self, problem: Problem) -> torch.Tensor:
        """Logits after the prompt and the mixtures that the logits before them are: once per prompt."""
        lm = problem.lm
        different, rows = problem.rows.unique(return_inverse=True)
        prompts, table = (
            problem._replace(rows=different).owners,
            lm.embed(torch.arange(lm.vocabulary.size, device=lm.device)),
        )
        mixed = torch.zeros(len(prompts), problem.limits.length, table.shape[1], device=lm.device)
        logits, tokens = [], different.new_zeros(len(prompts), 0)
        for i in range(problem.limits.length):
            after = lm.continued(prompts, mixed[:, : i + 1]).logits[:, -1]
            after = penalise(after, tokens, problem.limits.repetition_penalty).masked_fill(_never(problem), -torch.inf)
            logits.append(after / self.start_temperature)
            mixed[:, i] = logits[-1].softmax(-1) @ table
            tokens = torch.cat([tokens, after.argmax(-1, keepdim=True)], dim=1)
        return torch.stack(logits, 1)[rows]

    def _drawn_start(self, problem: Problem) -> torch.Tensor:
        """Logits along a rollout, with the noise that drew its tokens: the likeliest by them are that rollout."""
        never, drawing = _never(problem), problem.drawing
        shape = len(problem.rows), problem.limits.length, len(never)
        logits = torch.zeros(shape, device=never.device).masked_fill_(never, -torch.inf)

        def note(at: torch.Tensor, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            drawn = scores
            if not problem.greedy:
                drawn = drawing.draw(at, rows, scores)
                below = torch.minimum(scores / drawing.temperature[rows, None], drawn.amax(-1, keepdim=True) - 1)
                scores = torch.where(drawn.isfinite(), drawn, below)
            logits[rows, at] = scores.masked_fill(never, -torch.inf)
            return drawn

        rollout(problem.lm, problem.prompts, problem.rows, problem.limits, draw=note)
        return logits


def adam(gradient: torch.Tensor, mean: torch.Tensor, square: torch.Tensor, time: int) -> torch.Tensor:
    """Adam's direction, its moments brought up to date in place; `time` is 1 at the first gradient."""
    mean.lerp_(gradient, 1 - BETAS[0])
    square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = (square / (1 - BETAS[1] ** time)).sqrt_().add_(TINY)
    return mean.div(root).div_(1 - BETAS[0] ** time)


def _never(problem: Problem) -> torch.Tensor:
    """What may not be written: bool [V]."""
    vocabulary, forbidden = problem.lm.vocabulary, problem.limits.forbidden
    banned = vocabulary.banned_free if problem.limits.free else vocabulary.banned_fixed
    return banned if forbidden is None else banned | forbidden.tokens


def _named(problem: Problem) -> torch.Tensor:
    """All tokens of what the constraint names itself: [c]."""
    vocabulary = problem.lm.vocabulary
    pieces = [token for phrase in problem.constraint.phrases(vocabulary).values() for token in phrase]
    named = list(dict.fromkeys([*problem.constraint.wanted(vocabulary), *pieces]))
    tokens = torch.tensor(named, dtype=torch.long, device=problem.rows.device)
    return tokens[~_never(problem)[tokens]]
