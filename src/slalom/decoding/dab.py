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
    """What the next step needs: the latest rollout, the one to go on from, and how many steps were taken."""

    latest: Rollout
    origin: Rollout
    worth: torch.Tensor  # [B], of the origin
    steps: int

    def select(self, rows: list[int]) -> DABState:
        """Only these rows."""
        return DABState(self.latest.select(rows), self.origin.select(rows), self.worth[rows], self.steps)


@dataclass(frozen=True)
class DAB:
    """Discrete Auto-regressive Biasing (Pynadath and Zhang, ICLR 2025): a rollout and a gradient of f a step."""

    name: ClassVar[str] = "dab"

    weight: float = knob(3.0, "bias weight w: how strongly bias tokens pull, after the norms are matched", least=0)
    growth: float = knob(1.02, "factor on the weight from step to step: a wish not yet met is pressed harder", least=0)
    schedule: str = knob("constant", "the weight over positions", choices=SCHEDULES)
    tau: float = knob(1.0, "proposal temperature: lower follows the gradient, higher explores", least=1e-6)
    top_k: int = knob(250, "candidates per position: the tokens the unbiased LM likes best there", least=1)
    norm: str = knob("centred", "the size of the logits that the bias is matched to", choices=NORMS)
    scores: str = knob(
        "normalised",
        "a candidate's score: entry, gain over the current token, or that gain in its own spread",
        choices=SCORES,
    )
    lm_weight: float = knob(0.8, "weight of the LM's own log-probability in the proposal (0 in the paper)", least=0)
    moves: int = knob(1, "positions that may move in a step (0, as in the paper: all)", least=0)
    hold: str = knob(
        "own", "where the bias acts: everywhere, where it moved, where the LM would choose otherwise", choices=HOLDS
    )
    wanted: float = knob(10.0, "bonus for tokens the constraint names, however unlikely (0 in the paper)", least=0)
    climb: bool = knob(True, "go on from the worthiest draft so far (no in the paper: from the latest)")
    enough: float = knob(4.0, "a constraint's score beyond which more is not worth more")
    fluency: float = knob(1.0, "worth of the LM's mean log-probability of a token, in units of the score", least=0)

    def init(self, problem: Problem, rng: Rng) -> DABState:
        """The LM's own greedy draft, decoded once per prompt."""
        prompts, rows = problem.rows.unique(return_inverse=True)
        first = self._rollout(problem._replace(rows=prompts), None).select(rows.tolist())
        return DABState(first, first, torch.full_like(problem.rows, -torch.inf, dtype=torch.float), 0)

    def step(self, problem: Problem, state: DABState, rng: Rng) -> DABState:
        """One turn of the paper's loop: B | Y by a Langevin proposal, then Y | B by biased greedy decoding."""
        origin, worth = self._origin(problem, state)
        bias_tokens = self._propose(problem, origin, rng)
        bias = self._bias(problem, origin, bias_tokens, self.weight * self.growth**state.steps)
        return DABState(self._rollout(problem, bias), origin, worth, state.steps + 1)

    def read(self, problem: Problem, state: DABState) -> Draft:
        """The latest draft."""
        return state.latest.draft

    def _origin(self, problem: Problem, state: DABState) -> tuple[Rollout, torch.Tensor]:
        """The rollout to go on from: the latest, or the worthiest so far, f and fluency weighed together."""
        if not self.climb:
            return state.latest, state.worth
        draft = state.latest.draft
        judged = problem.judge(draft)
        terms = zip(problem.constraint.terms(), judged.parts, strict=True)
        wishes = torch.stack([weight * part.score.clamp(max=self.enough) for (weight, _), part in terms]).sum(0)
        worth = wishes - self.fluency * draft.perplexity.log()
        better = worth > state.worth
        return state.latest.where(better, state.origin), torch.where(better, worth, state.worth)

    def _propose(self, problem: Problem, origin: Rollout, rng: Rng) -> torch.Tensor:
        """B ~ q(. | Y), the Langevin proposal from B = Y; beyond the paper, with the LM and a limit on the moves."""
        entries = problem.constraint.candidate_scores(origin.draft, origin.candidates)
        scores = SCORES[self.scores](entries)
        log_weights = scores / self.tau + self.lm_weight * origin.log_probs
        named = slice(1, 1 + len(self._named(problem)))
        log_weights[..., named] += self.wanted * (scores[..., named] > 0)
        return propose(log_weights.masked_fill(origin.repeated, -torch.inf), origin.candidates, self.moves, rng)

    def _bias(self, problem: Problem, origin: Rollout, bias_tokens: torch.Tensor, weight: float) -> Bias:
        """The bias each position's logits get: norm-matched distances."""
        shape, norm, schedule = geometry(problem.lm.vocabulary), NORMS[self.norm], SCHEDULES[self.schedule]
        acts = HOLDS[self.hold](bias_tokens, origin)  # [B, n]

        def bias(i: int, logits: torch.Tensor) -> torch.Tensor:
            weights = weight * schedule(i, problem.limits.length) * acts[:, i]
            return bias_vector(shape, bias_tokens[:, i], logits, weights, norm)

        return bias

    def _rollout(self, problem: Problem, bias: Bias | None) -> Rollout:
        """Y | B, with the candidates of the next proposal."""
        named = self._named(problem)
        return rollout(problem.lm, problem.prompts, problem.rows, problem.limits, bias, self.top_k, named)

    def _named(self, problem: Problem) -> list[int]:
        """The tokens the constraint names itself; in a rollout's candidates they come right after the current token."""
        return problem.constraint.wanted(problem.lm.vocabulary) if self.wanted else []
