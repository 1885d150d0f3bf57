"""FUDGE's idea with the guide we have: at every position f reads the LM's favourites put in, and tilts their odds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch

from slalom.backbone.rollout import rollout
from slalom.constraints.constraint import Constraint
from slalom.decoding.knobs import knob
from slalom.decoding.none import UnsteeredState
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem
from slalom.types import Draft

FAR = 1e4  # puts the tokens that f has not read below all others, in the LM's order


def _score(part: Constraint, score: torch.Tensor) -> torch.Tensor:
    return score


def _log_probability(part: Constraint, score: torch.Tensor) -> torch.Tensor:
    probability = part.probability(score)
    return score if probability is None else probability.clamp(min=1e-6).log()


# A part of the wish and its scores [B] → what is added to the LM's log-probability, times the weight.
MEASURES: dict[str, Callable[[Constraint, torch.Tensor], torch.Tensor]] = {
    "log-probability": _log_probability,  # FUDGE's: Bayes' rule at weight 1; f where a part has no probability
    "score": _score,
}


@dataclass(frozen=True)
class Rerank:
    """Left to right: the LM's favourites, each put in and read by f, one chosen by log p + weight * log p of the wish.

    FUDGE trains a classifier on beginnings of texts; here the constraint itself reads them (`prefix_score`).
    """

    name: ClassVar[str] = "rerank"
    paper: ClassVar[str] = "Yang and Klein, NAACL 2021 (FUDGE), with the constraint as its classifier"
    cost: ClassVar[str] = "a rollout without gradients, `top_k` readings by f at every position"
    mixes: ClassVar[bool] = True
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    weight: float = knob(6.0, "factor on what f says of a token, against the LM's own log-probability", least=0)
    top_k: int = knob(20, "tokens of each position that f reads: those the LM likes best; no other is written", least=1)
    measure: str = knob("log-probability", "what f says of a token: log p of the wish, or f", choices=MEASURES)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """One text, the likeliest or, with a temperature, drawn; and FUDGE's own numbers."""
        return {"default": Preset(cls(), steps=1), "paper": Preset(cls(weight=1.0, top_k=200), steps=1)}

    def stronger(self, strength: float) -> Self:
        """What f says counts so many times as much."""
        return replace(self, weight=strength * self.weight)

    def init(self, problem: Problem, rng: Rng) -> UnsteeredState:
        """The first text."""
        return UnsteeredState(self._write(problem))

    def step(self, problem: Problem, state: UnsteeredState, rng: Rng) -> UnsteeredState:
        """A fresh sample; greedy decoding would give the same text again."""
        return state if problem.greedy else UnsteeredState(self._write(problem.redrawn(rng)))

    def read(self, problem: Problem, state: UnsteeredState) -> Draft:
        """The latest draft."""
        return state.latest

    def _write(self, problem: Problem) -> Draft:
        """One rollout, every position's scores tilted."""

        def tilt(rows: torch.Tensor, before: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            return self._tilted(problem.select(rows), before, scores)

        written = rollout(problem.lm, problem.prompts, problem.rows, problem.row_limits, draw=problem.draw, tilt=tilt)
        return written.draft

    def _tilted(self, problem: Problem, before: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [B, V] after the texts before [B, i]: log p + weight * what f says, of the favourites alone."""
        log_probs = scores.log_softmax(-1)
        best = log_probs.topk(min(self.top_k, scores.shape[1]))
        said = self._said(problem, before, best.indices)
        return (log_probs - FAR).scatter(-1, best.indices, best.values + self.weight * said)

    def _said(self, problem: Problem, before: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What f says of each text before [B, i] with a token put in, [B, k] → [B, k]; nothing of texts that ended."""
        size, k = tokens.shape
        eos = torch.tensor(problem.lm.vocabulary.eos, device=tokens.device)
        going = (~torch.isin(before, eos).any(-1)).nonzero()[:, 0]
        said = torch.zeros(size, k, device=tokens.device)
        if not self.weight or not len(going):
            return said
        put_in = tokens[going].flatten()
        texts = torch.cat([before[going].repeat_interleave(k, 0), put_in[:, None]], dim=1)
        lengths = texts.shape[1] - torch.isin(put_in, eos).long()
        several = problem.select(going.repeat_interleave(k))
        draft = problem.lm.draft(several.owners, texts, lengths, torch.zeros_like(texts, dtype=torch.float))
        said[going] = self._measured(several, draft).view(-1, k)
        return said

    def _measured(self, problem: Problem, draft: Draft) -> torch.Tensor:
        """The weighted sum over the parts of each row's wish: [B]."""
        measure = MEASURES[self.measure]
        total = torch.zeros(len(draft.texts), device=problem.rows.device)
        for constraint, _, rows in problem.groups():
            own = draft.select(rows)
            for weight, part in constraint.terms():
                total[rows] += weight * measure(part, part.prefix_score(own)).to(total.dtype)
        return total
