"""Discrete Auto-regressive Biasing: a draft and f's gradient to bias tokens, and those to the next draft."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Bias, Resumed, Rollout, rollout
from slalom.constraints.constraint import Constraint
from slalom.constraints.keywords import Keywords
from slalom.decoding.bias import HOLDS, NORMS, SCHEDULES, bias_vector, geometry, prepare
from slalom.decoding.knobs import knob
from slalom.decoding.proposal import SCORES, Moves, propose, shortlist
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import ENOUGH, Preset, Problem, Stop, worth
from slalom.types import Draft

LOOK = 1  # names the random numbers of the second choice


class DABState(NamedTuple):
    """What the next step needs: the latest draft, the rollout to go on from, and how many steps were taken."""

    latest: Draft
    origin: Rollout
    worth: torch.Tensor  # [B], of the origin
    entries: torch.Tensor  # [B, n, c], f's gradient at the origin's candidates
    fresh: torch.Tensor  # bool [B], whether those entries are the present origin's
    tried: torch.Tensor  # bool [B, n, c], single moves that were made from this origin already
    looked: torch.Tensor  # [B, n, c], what f saw of single moves; NaN where it has not looked
    steps: int

    def select(self, rows: list[int]) -> DABState:
        """Only these rows."""
        return self._replace(
            latest=self.latest.select(rows),
            origin=self.origin.select(rows),
            worth=self.worth[rows],
            entries=self.entries[rows],
            fresh=self.fresh[rows],
            tried=self.tried[rows],
            looked=self.looked[rows],
        )


@dataclass(frozen=True)
class DAB:
    """Discrete Auto-regressive Biasing: bias tokens from f's gradient, and greedy decoding pulled towards them."""

    name: ClassVar[str] = "dab"
    paper: ClassVar[str] = "Pynadath and Zhang, ICLR 2025"
    cost: ClassVar[str] = "a rollout without gradients, a gradient of f at its inputs, up to 16 looks by f"

    weight: float = knob(4.0, "bias weight w: how strongly bias tokens pull, after the norms are matched", least=0)
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
    looks: int = knob(16, "single moves that f looks at really put in, before the best is made (1: none)", least=1)
    hold: str = knob(
        "own", "where the bias acts: everywhere, where it moved, where the LM would choose otherwise", choices=HOLDS
    )
    keep: bool = knob(
        True, "text before the first move stays as it is (no in the paper: it is pulled and decoded anew)"
    )
    wanted: float = knob(20.0, "bonus for tokens the constraint names, however unlikely (0 in the paper)", least=0)
    climb: bool = knob(True, "go on from the worthiest draft so far (no in the paper: from the latest)")
    enough: float = knob(ENOUGH, "a constraint's score beyond which more is not worth more")
    fluency: float = knob(1.0, "worth of the LM's mean log-probability of a token, in units of the score", least=0)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Two of ours, and the paper's own settings.

        Several wishes, or words, cost more fluency: it is asked for harder.
        """
        parts = [part for _, part in constraint.terms()]
        keywords = all(isinstance(part, Keywords) for part in parts)
        one = len(parts) == 1 and not keywords
        ours = cls() if one else cls(enough=3.0, fluency=1.5)
        sure = constraint.sure if one else min(constraint.sure, 0.95)
        steps, stop = 40 if one else 60, Stop(sure, fluent=1.3, patience=12)
        return {
            "default": Preset(ours, steps, stop, "joint"),
            # goes on until f is twice as sure, and moves more freely: more drafts, for wishes the LM resists
            "thorough": Preset(
                replace(ours, enough=7.0, lm_weight=0.5), steps, Stop((1 + sure) / 2, fluent=1.3, patience=12), "joint"
            ),
            "paper": Preset(replace(PAPER, weight=1.4), steps=200) if keywords else Preset(PAPER, steps=20),
        }

    def stronger(self, strength: float) -> Self:
        """The bias weight times the strength."""
        return replace(self, weight=strength * self.weight)

    def init(self, problem: Problem, rng: Rng) -> DABState:
        """The LM's own draft; a greedy one is decoded once per prompt."""
        geometry(problem.lm.vocabulary)  # made now, while little else is in memory
        if problem.drawing is None:
            prompts, rows = problem.rows.unique(return_inverse=True)
            first = self._rollout(problem._replace(rows=prompts)).select(rows)
        else:
            first = self._rollout(problem)
        nothing = torch.zeros_like(first.log_probs)
        worth = self._worth(problem, first.draft)
        fresh = torch.zeros_like(worth, dtype=torch.bool)
        tried, looked = torch.zeros_like(nothing, dtype=torch.bool), torch.full_like(nothing, torch.nan)
        return DABState(first.draft, first, worth, nothing, fresh, tried, looked, 0)

    def step(self, problem: Problem, state: DABState, rng: Rng) -> DABState:
        """One turn of the paper's loop: B | Y by a Langevin proposal, then Y | B by biased greedy decoding."""
        entries = self._entries(problem, state)
        bias_tokens, looked = self._propose(problem, state, entries, rng)
        latest = self._decode(problem, state.origin, bias_tokens, self.weight * self.growth**state.steps)
        worth = self._worth(problem, latest.draft)
        better = (latest.draft.tokens != state.origin.draft.tokens).any(-1)
        if self.climb:
            better &= worth > state.worth
        same = (latest.draft.tokens == state.origin.draft.tokens).cumprod(-1).bool()  # up to the first change
        same &= (latest.candidates == state.origin.candidates).all(-1)
        return DABState(
            latest=latest.draft,
            origin=latest.where(better, state.origin),
            worth=torch.where(better, worth, state.worth),
            entries=entries,
            fresh=~better,
            tried=(state.tried | (state.origin.candidates == bias_tokens[..., None])) & ~better[:, None, None],
            looked=looked.masked_fill((better[:, None] & ~same)[..., None], torch.nan),
            steps=state.steps + 1,
        )

    def read(self, problem: Problem, state: DABState) -> Draft:
        """The latest draft."""
        return state.latest

    def _worth(self, problem: Problem, draft: Draft) -> torch.Tensor:
        """What makes one draft a better place to go on from than another: f and fluency weighed together."""
        return worth(problem.judge(draft), draft, self.enough, self.fluency)

    def _entries(self, problem: Problem, state: DABState) -> torch.Tensor:
        """f's gradient at the candidates, computed only for rows whose origin is new."""
        rows = (~state.fresh).nonzero()[:, 0]
        if not len(rows):
            return state.entries
        new = problem.constraint.candidate_scores(state.origin.draft.select(rows), state.origin.candidates[rows])
        return state.entries.index_copy(0, rows, new.to(state.entries.dtype))

    def _propose(
        self, problem: Problem, state: DABState, entries: torch.Tensor, rng: Rng
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """B ~ q(. | Y), the Langevin proposal from B = Y; beyond the paper, with the LM and a limit on the moves.

        And what f has looked at by then.
        """
        origin = state.origin
        scores = SCORES[self.scores](entries)
        log_weights = scores / self.tau + self.lm_weight * origin.log_probs
        if named := self._named(problem):
            order = {token: number for number, token in enumerate(problem.constraint.wanted(problem.lm.vocabulary))}
            missing = problem.constraint.missing(origin.draft)[:, None, [order[token] for token in named]]
            columns = slice(1, 1 + len(named))
            log_weights[..., columns] += self.wanted * (missing & (scores[..., columns] > 0))
        never = origin.repeated | ~origin.draft.real[..., None]
        if self.moves == 1:
            never |= state.tried  # the same move would give the same draft
        never[..., 0] = False
        log_weights.masked_fill_(never, -torch.inf)
        if self.moves != 1 or self.looks < 2:
            return propose(log_weights, origin.candidates, self.moves, rng), state.looked
        moves = shortlist(log_weights, origin.candidates, self.looks, rng)
        phrases = problem.constraint.phrases(problem.lm.vocabulary)
        looked = self._look(problem, state, moves, phrases)
        return self._choose(origin, moves, moves.of(looked), phrases, rng.fold(LOOK)), looked

    def _look(self, problem: Problem, state: DABState, moves: Moves, phrases: Phrases) -> torch.Tensor:
        """f of the text up to and with each move's new token, for what follows is written anew; each but once."""
        new = moves.of(state.looked).isnan() & moves.real
        rows, positions, tokens = new.nonzero()[:, 0], moves.positions[new], moves.of(state.origin.candidates)[new]
        if not len(rows):
            return state.looked
        beginnings = _beginnings(problem.lm, state.origin.draft.select(rows.tolist()), positions, tokens, phrases)
        seen = problem.constraint.outlook(beginnings).to(state.looked.dtype)
        return state.looked.index_put((rows, positions, moves.columns[new]), seen)

    def _choose(self, origin: Rollout, moves: Moves, scores: torch.Tensor, phrases: Phrases, rng: Rng) -> torch.Tensor:
        """Of several single moves one, by what f saw of each."""
        tokens = moves.of(origin.candidates)
        scores = scores.masked_fill(~moves.real, 0.0)
        spread = (scores - scores.mean(-1, keepdim=True)) / scores.std(-1, keepdim=True).clamp(min=1e-9)
        log_weights = spread / self.tau + self.lm_weight * moves.of(origin.log_probs)
        counters = tokens * origin.draft.tokens.shape[1] + moves.positions
        noisy = (log_weights + rng.gumbel(counters)).masked_fill(~moves.real, -torch.inf)
        chosen = moves.one(noisy.argmax(-1))
        moved, _ = _put_in(origin.draft.tokens, chosen.positions[:, 0], chosen.of(origin.candidates)[:, 0], phrases)
        return torch.where(chosen.real, moved, origin.draft.tokens)

    def _decode(self, problem: Problem, origin: Rollout, bias_tokens: torch.Tensor, weight: float) -> Rollout:
        """Y | B: norm-matched distances as bias. What the bias leaves as it was need not be decoded again."""
        shape, norm, schedule = geometry(problem.lm.vocabulary), NORMS[self.norm], SCHEDULES[self.schedule]
        real = origin.draft.real
        acts = HOLDS[self.hold](bias_tokens, origin) & real  # [B, n]
        ready = prepare(shape, bias_tokens[acts])

        def bias(i: int, rows: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            biased = acts[rows, i].nonzero()[:, 0]
            weights = torch.full_like(biased, weight * schedule(i, problem.limits.length), dtype=torch.float)
            return biased, bias_vector(shape, bias_tokens[rows[biased], i], logits[biased], weights, norm, ready)

        moved = bias_tokens != origin.draft.tokens
        changes = moved if self.keep else acts | (origin.draft.tokens != origin.unbiased)
        return self._rollout(problem, bias, Resumed(origin, first_true(changes & real)))

    def _rollout(self, problem: Problem, bias: Bias | None = None, resumed: Resumed | None = None) -> Rollout:
        """Greedy decoding, with the candidates of the next proposal."""
        lm, prompts, rows, limits, *_ = problem
        return rollout(lm, prompts, rows, limits, bias, self.top_k, self._named(problem), resumed, problem.draw)

    def _named(self, problem: Problem) -> list[int]:
        """The tokens the constraint names itself; in a rollout's candidates they come right after the current token."""
        named = problem.constraint.wanted(problem.lm.vocabulary) if self.wanted else []
        forbidden = problem.limits.forbidden
        return named if forbidden is None else [token for token in named if not forbidden.tokens[token]]


# The paper's text and table of hyper-parameters: log-probabilities in the norm, the LM's candidates alone.
PAPER = DAB(
    weight=1.05,
    growth=1.0,
    schedule="decreasing",
    tau=0.1,
    top_k=250,
    norm="log-probabilities",
    scores="gradient",
    lm_weight=0.0,
    moves=0,
    looks=1,
    hold="all",
    keep=False,
    wanted=0.0,
    climb=False,
)

Phrases = dict[int, tuple[int, ...]]


def _put_in(
    rows: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor, phrases: Phrases
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row [B, n] with its move [B] made, a whole phrase where a token begins one; and where the change ends."""
    changed = rows.scatter(1, positions[:, None], tokens[:, None])
    ends = positions + 1
    for row, token in enumerate(tokens.tolist()):
        if token in phrases:
            start = int(positions[row])
            pieces = phrases[token][: rows.shape[1] - start]
            ends[row] = start + len(pieces)
            changed[row, start : start + len(pieces)] = torch.tensor(pieces, device=rows.device)
    return changed, ends


def _beginnings(
    lm: LanguageModel, draft: Draft, positions: torch.Tensor, tokens: torch.Tensor, phrases: Phrases
) -> Draft:
    """Each row up to its move, that made."""
    rows, ends = _put_in(draft.tokens, positions, tokens, phrases)
    return lm.draft(draft.prompts, rows, ends, torch.zeros_like(rows, dtype=torch.float))


def first_true(marks: torch.Tensor) -> torch.Tensor:
    """The first marked position of each row, bool [B, n] → [B]; n where there is none."""
    n = marks.shape[1]
    return torch.where(marks, torch.arange(n, device=marks.device), n).amin(-1)
