"""Discrete Auto-regressive Biasing: a draft and f's gradient to bias tokens, and those to the next draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch

from slalom.backbone.rollout import FREE, Bias, Rollout, per_candidate, rollout
from slalom.constraints.constraint import Constraint
from slalom.decoding.bias import NORMS, SCHEDULES, bias_vector, geometry, prepare
from slalom.decoding.knobs import knob
from slalom.decoding.proposal import SCORES, propose
from slalom.decoding.randomness import Rng
from slalom.decoding.recorded import recorded_weight
from slalom.decoding.sampler import Preset, Problem
from slalom.types import Draft, widened


class DABState(NamedTuple):
    """What the next step needs: the latest draft, and the tokens that might stand at its positions."""

    latest: Draft
    candidates: torch.Tensor  # [B, n, c], the token itself and the LM's favourites
    log_probs: torch.Tensor  # [B, n, c], the LM's
    repeated: torch.Tensor  # bool [B, n, c], a candidate that stands there already
    proposed: torch.Tensor  # [B, n], the bias tokens it was written with; FREE before the first

    @staticmethod
    def of(written: Rollout, bias_tokens: torch.Tensor | None = None) -> DABState:
        """All of a rollout but the engine's memory: every draft begins at the prompt."""
        tokens = written.draft.tokens  # narrower than the bias tokens if the longest row has left
        proposed = torch.full_like(tokens, FREE) if bias_tokens is None else bias_tokens[:, : tokens.shape[1]]
        return DABState(written.draft, written.candidates, written.log_probs, written.repeated, proposed)

    def select(self, rows: list[int]) -> DABState:
        """Only these rows."""
        return DABState(self.latest.select(rows), *(tensor[rows] for tensor in self[1:]))

    def join(self, other: DABState, columns: tuple[int, int]) -> DABState:
        """The rows of both."""
        n, c = (max(own.candidates.shape[dim] for own in (self, other)) for dim in (1, 2))
        candidates, log_probs, repeated = (
            torch.cat([per_candidate(tensor, n, c, filling) for tensor in pair])
            for *pair, filling in zip(self[1:4], other[1:4], (0, 0, True), strict=True)
        )
        proposed = torch.cat([widened(own.proposed, n, FREE) for own in (self, other)])
        return DABState(self.latest.join(other.latest), candidates, log_probs, repeated, proposed)


@dataclass(frozen=True)
class DAB:
    """Discrete Auto-regressive Biasing: bias tokens from f's gradient, and greedy decoding pulled towards them."""

    name: ClassVar[str] = "dab"
    paper: ClassVar[str] = "Pynadath and Zhang, ICLR 2025"
    cost: ClassVar[str] = "a rollout without gradients, a gradient of f at its inputs"
    mixes: ClassVar[bool] = True
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    weight: float = knob(2.4, "bias weight w: how strongly bias tokens pull, after the norms are matched", least=0)
    schedule: str = knob("decreasing", "the weight over positions", choices=SCHEDULES)
    tau: float = knob(0.2, "proposal temperature: lower follows the gradient, higher explores", least=1e-6)
    top_k: int = knob(250, "candidates per position: the tokens the unbiased LM likes best there", least=1)
    norm: str = knob("centred", "the size of the logits that the bias is matched to", choices=NORMS)
    scores: str = knob("difference", "a candidate's score: entry, or gain over the current token", choices=SCORES)
    lm_weight: float = knob(1.0, "weight of the LM's own log-probability in the proposal (0 in the paper)", least=0)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """The paper's own settings, and the same algorithm with a norm that carries over between LMs."""
        paper = replace(PAPER, weight=1.4) if constraint.kind == "words" else PAPER
        steps = 200 if constraint.kind == "words" else 20
        return {"default": Preset(cls(), steps), "paper": Preset(paper, steps)}

    def stronger(self, strength: float) -> Self:
        """The bias weight times the strength."""
        return replace(self, weight=strength * self.weight)

    def for_lm(self, name: str) -> Self:
        """With the weight measured for this LM, where there is one; the paper's norm keeps the paper's weight."""
        weight = recorded_weight(name) if self.norm != PAPER.norm else None
        return self if weight is None else replace(self, weight=weight)

    def init(self, problem: Problem, rng: Rng) -> DABState:
        """The LM's own draft."""
        geometry(problem.lm.vocabulary)  # made now, while little else is in memory
        return DABState.of(self._rollout(problem))

    def step(self, problem: Problem, state: DABState, rng: Rng) -> DABState:
        """One turn of the paper's loop: B | Y by a Langevin proposal, then Y | B by biased greedy decoding."""
        bias_tokens = self._propose(problem, state, rng)
        return DABState.of(self._decode(problem, bias_tokens), bias_tokens)

    def read(self, problem: Problem, state: DABState) -> Draft:
        """The latest draft."""
        return state.latest

    def _propose(self, problem: Problem, state: DABState, rng: Rng) -> torch.Tensor:
        """B ~ q(. | Y), the Langevin proposal from B = Y, every position by itself: [B, n]."""
        entries = problem.candidate_scores(state.latest, state.candidates)
        log_weights = SCORES[self.scores](entries) / self.tau + self.lm_weight * state.log_probs
        log_weights.masked_fill_(state.repeated, -torch.inf)
        return propose(log_weights, state.candidates, rng)

    def _decode(self, problem: Problem, bias_tokens: torch.Tensor) -> Rollout:
        """Y | B: at every position minus the norm-matched distances to the bias token, added to the logits."""
        shape, norm, schedule = geometry(problem.lm.vocabulary), NORMS[self.norm], SCHEDULES[self.schedule]
        ready = prepare(shape, bias_tokens.flatten())
        lengths = [limits.length for limits in problem.row_limits]

        def bias(at: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            places = zip(at.tolist(), rows.tolist(), strict=True)
            pull = torch.tensor([self.weight * schedule(i, lengths[row]) for i, row in places], device=logits.device)
            vectors = bias_vector(shape, bias_tokens[rows, at], logits, pull, norm, ready)
            return torch.arange(len(rows), device=rows.device), vectors

        return self._rollout(problem, bias)

    def _rollout(self, problem: Problem, bias: Bias | None = None) -> Rollout:
        """Greedy decoding from the prompt on, with the candidates of the next proposal."""
        lm, prompts, rows, limits = problem.lm, problem.prompts, problem.rows, problem.row_limits
        return rollout(lm, prompts, rows, limits, bias, self.top_k, draw=problem.draw)


# The paper's text and table of hyper-parameters: log-probabilities in the norm, the LM's candidates alone.
PAPER = DAB(
    weight=1.05,
    schedule="decreasing",
    tau=0.1,
    norm="log-probabilities",
    scores="gradient",
    lm_weight=0.0,
)
