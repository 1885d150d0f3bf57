"""Discrete Auto-regressive Biasing: a draft and f's gradient to bias tokens, and those to the next draft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from slalom.backbone.rollout import Bias, Rollout, rollout
from slalom.decoding.bias import HOLDS, NORMS, SCHEDULES, bias_vector, geometry
from slalom.decoding.knobs import knob
from slalom.decoding.proposal import SCORES, propose
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Problem
from slalom.types import Draft


class DABState(NamedTuple):
    """What the next step needs: the last rollout, and how many steps were taken."""

    rollout: Rollout
    steps: int

    def select(self, rows: list[int]) -> DABState:
        """Only these rows."""
        return DABState(self.rollout.select(rows), self.steps)


@dataclass(frozen=True)
class DAB:
    """Discrete Auto-regressive Biasing (Pynadath and Zhang, ICLR 2025): a rollout and a gradient of f a step."""

    name: ClassVar[str] = "dab"

    weight: float = knob(1.0, "bias weight w: how strongly bias tokens pull, after the norms are matched", least=0)
    growth: float = knob(
        1.05, "factor on weight and scores from step to step: a wish not yet met is pressed harder", least=0
    )
    schedule: str = knob("constant", "the weight over positions", choices=SCHEDULES)
    tau: float = knob(0.1, "proposal temperature: lower follows the gradient, higher explores", least=1e-6)
    top_k: int = knob(250, "candidates per position: the tokens the unbiased LM likes best there", least=1)
    norm: str = knob("centred", "the logits' size that the bias is matched to", choices=NORMS)
    scores: str = knob(
        "difference", "a candidate's score: its gradient entry, or its gain over the current token", choices=SCORES
    )
    lm_weight: float = knob(1.0, "weight of the LM's own log-probability in the proposal (0 in the paper)", least=0)
    stay: float = knob(4.0, "bonus for keeping the current token, Langevin's step size (0 in the paper)", least=0)
    hold: str = knob(
        "own", "where the bias acts: everywhere, where it moved, where the LM would choose otherwise", choices=HOLDS
    )
    wanted: bool = knob(True, "propose tokens the constraint names itself, however unlikely (no in the paper)")

    def init(self, problem: Problem, rng: Rng) -> DABState:
        """The LM's own greedy draft, decoded once per prompt."""
        prompts, rows = problem.rows.unique(return_inverse=True)
        return DABState(self._rollout(problem._replace(rows=prompts), None), 0).select(rows.tolist())

    def step(self, problem: Problem, state: DABState, rng: Rng) -> DABState:
        """One turn of the paper's loop: B | Y by a Langevin proposal, then Y | B by biased greedy decoding."""
        urgency = self.growth**state.steps
        bias_tokens = self._propose(problem, state.rollout, urgency, rng)
        bias = self._bias(problem, state.rollout, bias_tokens, urgency)
        return DABState(self._rollout(problem, bias), state.steps + 1)

    def read(self, problem: Problem, state: DABState) -> Draft:
        """The current draft."""
        return state.rollout.draft

    def _propose(self, problem: Problem, last: Rollout, urgency: float, rng: Rng) -> torch.Tensor:
        """B ~ q(. | Y), Eq. 8, started at B = Y; beyond the paper, with the LM's opinion and a bonus for staying."""
        entries = problem.constraint.candidate_scores(last.draft, last.candidates)
        log_weights = urgency * SCORES[self.scores](entries) / self.tau
        if self.lm_weight:
            log_weights = log_weights + self.lm_weight * last.log_probs
        log_weights[..., 0] += self.stay
        return propose(log_weights.masked_fill(last.repeated, -torch.inf), last.candidates, rng)

    def _bias(self, problem: Problem, last: Rollout, bias_tokens: torch.Tensor, urgency: float) -> Bias:
        """The bias each position's logits get, Eq. 10 and 11."""
        shape, norm, schedule = geometry(problem.lm.vocabulary), NORMS[self.norm], SCHEDULES[self.schedule]
        acts = HOLDS[self.hold](bias_tokens, last)  # [B, n]

        def bias(i: int, logits: torch.Tensor) -> torch.Tensor:
            weights = self.weight * urgency * schedule(i, problem.limits.length) * acts[:, i]
            return bias_vector(shape, bias_tokens[:, i], logits, weights, norm)

        return bias

    def _rollout(self, problem: Problem, bias: Bias | None) -> Rollout:
        """Y | B, with the candidates of the next proposal."""
        extra = problem.constraint.wanted(problem.lm.vocabulary) if self.wanted else []
        return rollout(problem.lm, problem.prompts, problem.rows, problem.limits, bias, self.top_k, extra)
