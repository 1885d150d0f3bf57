"""Our own sampler: a draft to single moves worth trying, those to drafts side by side, of which the best is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch

from slalom.backbone.rollout import FREE, Forbidden, Resumed, Rollout, per_candidate, rollout, unwritten
from slalom.constraints.constraint import Constraint
from slalom.decoding.drawing import Drawing
from slalom.decoding.knobs import knob
from slalom.decoding.objective import Objective
from slalom.decoding.proposal import Moves, counters, shortlist
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Preset, Problem, Stop
from slalom.types import Draft, widened

CHOOSE = 1  # RNG stream id of the choice among the moves looked at
START_TOP_P = 0.95  # nucleus of drawn first drafts


class ClimbState(NamedTuple):
    """What the next step needs: the latest draft, and the best one so far with all that was tried from it."""

    latest: Draft
    origin: Rollout
    objective: torch.Tensor  # [B], of the origin
    tried: torch.Tensor  # bool [B, n, c], moves that were made from this origin already
    lookahead_scores: torch.Tensor  # [B, n, c], f of the text up to a move; NaN where it has not looked
    usual_perplexity: torch.Tensor  # [B], of the LM's own text: the lowest of the first drafts
    proposed: torch.Tensor  # [B, n], the move that made the latest draft; FREE elsewhere
    drafts: torch.Tensor  # [B], how many the latest step wrote
    begun: torch.Tensor  # bool [B], whether anything is written; the step writes first drafts of rows that have none

    def select(self, rows: list[int]) -> ClimbState:
        """Only these rows."""
        return ClimbState(self.latest.select(rows), self.origin.select(rows), *(tensor[rows] for tensor in self[2:]))

    def join(self, other: ClimbState, columns: tuple[int, int]) -> ClimbState:
        """The rows of both, whose prompts took so many columns each."""
        n, c = (max(own.tried.shape[dim] for own in (self, other)) for dim in (1, 2))
        return ClimbState(
            self.latest.join(other.latest),
            self.origin.join(other.origin, columns),
            torch.cat([self.objective, other.objective]),
            torch.cat([per_candidate(own.tried, n, c, False) for own in (self, other)]),
            torch.cat([per_candidate(own.lookahead_scores, n, c, torch.nan) for own in (self, other)]),
            torch.cat([self.usual_perplexity, other.usual_perplexity]),
            torch.cat([widened(own.proposed, n, FREE) for own in (self, other)]),
            torch.cat([self.drafts, other.drafts]),
            torch.cat([self.begun, other.begun]),
        )


class Best(NamedTuple):
    """Of several drafts a row the best."""

    rollout: Rollout
    objective: torch.Tensor  # [B]
    lowest_perplexity: torch.Tensor  # [B], of all of them
    moves: torch.Tensor  # [B, n], what was put in to make it; FREE elsewhere


@dataclass(frozen=True)
class Climb:
    """From draft to better draft: tokens the LM likes, looked at by f, a few of them written out, the best kept."""

    name: ClassVar[str] = "climb"
    paper: ClassVar[str] = "Slalom's own"
    cost: ClassVar[str] = "`width` rollouts side by side without gradients, up to `looks` readings by f"
    mixes: ClassVar[bool] = True
    blockwise: ClassVar[bool] = True

    width: int = knob(4, "moves of a row that are written out side by side in a step", least=1)
    looks: int = knob(16, "moves of a row that f looks at in a step, before the best are written out", least=1)
    top_k: int = knob(250, "candidates per position: the tokens the LM likes best there", least=1)
    lm_weight: float = knob(0.8, "weight of the LM's own log-probability in the choice of moves", least=0)
    tau: float = knob(1.0, "temperature of the choice among moves looked at: higher explores", least=1e-6)
    wanted: float = knob(20.0, "bonus for tokens the constraint names, however unlikely", least=0)
    start: float = knob(0.8, "temperature of drawn first drafts", least=0)

    @property
    def drafts(self) -> int:
        """As many as are written side by side: no more than moves are looked at."""
        return min(self.width, self.looks)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Two: until f is sure, and until it is twice as sure.

        Several wishes, or words, cost more fluency: it is asked for harder.
        """
        one = constraint.kind not in ("words", "several")
        objective = Objective() if one else Objective(enough=3.0, fluency=1.5)
        sure = constraint.sure if one else min(constraint.sure, 0.95)
        steps = 40 if one else 60
        default = Preset(cls(), steps, Stop(sure, fluent=1.3, patience=12), "joint", objective=objective)
        thorough = replace(
            default,
            sampler=cls(lm_weight=0.5),
            stop=Stop((1 + sure) / 2, fluent=1.3, patience=12),
            objective=replace(objective, enough=7.0),
        )
        return {"default": default, "thorough": thorough}

    def stronger(self, strength: float) -> Self:
        """What f says of a move counts so many times as much against the LM's own opinion."""
        return replace(self, lm_weight=self.lm_weight / max(strength, 1e-6))

    def init(self, problem: Problem, rng: Rng) -> ClimbState:
        """With seed 0 the LM's likeliest text, which often will do; with others the best of a few drawn ones."""
        everyone = torch.arange(len(problem.rows), device=problem.rows.device)
        rows, drawing = self._first_drafts(problem, everyone)
        several = problem.select(rows)._replace(drawing=drawing)
        first, objective, perplexity, moves = self._best(problem, several, rows, None, None)
        tried, unseen = torch.zeros_like(first.repeated), torch.full_like(first.log_probs, torch.nan)
        begun = torch.ones_like(everyone, dtype=torch.bool)
        return ClimbState(first.draft, first, objective, tried, unseen, perplexity, moves, rows.bincount(), begun)

    def begin(self, problem: Problem) -> ClimbState:
        """Rows with nothing written yet, to join others: the next step writes their first drafts beside the others'."""
        lm, prompts, extra = problem.lm, problem.prompts, _extra_candidates(problem)
        blank = unwritten(lm, prompts, problem.rows, problem.row_limits, self.top_k, extra)
        none = torch.zeros_like(problem.rows)
        worst = torch.full(none.shape, -torch.inf, device=none.device)
        tried, unseen = torch.zeros_like(blank.repeated), torch.full_like(blank.log_probs, torch.nan)
        moves = torch.full_like(blank.draft.tokens, FREE)
        return ClimbState(blank.draft, blank, worst, tried, unseen, -worst, moves, none, none.bool())

    def step(self, problem: Problem, state: ClimbState, rng: Rng) -> ClimbState:
        """Look at some moves, write out the best of them, go on from the best text so far."""
        shortlisted = self._shortlist(problem, state, rng)
        lookahead_scores = self._look(problem, state, shortlisted)
        moves = self._choose(state.origin, shortlisted, shortlisted.of(lookahead_scores), rng.fold(CHOOSE))
        (latest, objective, perplexity, put_in), written = self._write(problem, state, moves)

        better = (objective > state.objective) | ~state.begun
        same = (latest.draft.tokens == state.origin.draft.tokens).cumprod(-1).bool()  # up to the first change
        same &= (latest.candidates == state.origin.candidates).all(-1)
        made = torch.zeros_like(state.tried)
        rows = torch.arange(len(better), device=better.device)[:, None]
        made[rows, moves.positions, moves.columns] = moves.real
        return ClimbState(
            latest.draft,
            latest.where(better, state.origin),
            torch.where(better, objective, state.objective),
            (state.tried | made) & ~better[:, None, None],
            lookahead_scores.masked_fill((better[:, None] & ~same)[..., None], torch.nan),
            torch.where(state.begun, state.usual_perplexity, perplexity),
            put_in,
            torch.where(state.begun, self.drafts, written),
            torch.ones_like(state.begun),
        )

    def read(self, problem: Problem, state: ClimbState) -> Draft:
        """The best draft of the latest step."""
        return state.latest

    def _shortlist(self, problem: Problem, state: ClimbState, rng: Rng) -> Moves:
        """Different moves, drawn by how likely the LM finds the new token, and whether the constraint names it."""
        origin = state.origin
        log_weights = self.lm_weight * origin.log_probs + self.wanted * self._named(problem, state)
        never = origin.repeated | ~origin.draft.real[..., None] | state.tried  # the same move gives the same draft
        never[..., 0] = False
        return shortlist(log_weights.masked_fill(never, -torch.inf), origin.candidates, self.looks, rng)

    def _named(self, problem: Problem, state: ClimbState) -> torch.Tensor:
        """Where a candidate is a token that a constraint names, still lacks, and could use there: [B, n, c]."""
        vocabulary, origin, begun = problem.lm.vocabulary, state.origin, state.begun.tolist()
        named = torch.zeros_like(origin.repeated)
        for constraint, n, everyone in problem.groups():
            rows = [row for row in everyone if begun[row]]
            for _, part in constraint.terms():
                tokens = torch.tensor(part.wanted(vocabulary), device=named.device)
                if not len(tokens) or not rows:
                    continue
                draft, candidates = origin.draft.select(rows).trimmed(n), origin.candidates[rows, :n]
                helps = part.candidate_scores(draft, candidates) > 0
                lacking = part.missing(draft)
                for number, row in enumerate(rows):
                    named[row, :n] |= helps[number] & torch.isin(candidates[number], tokens[lacking[number]])
        return named

    def _look(self, problem: Problem, state: ClimbState, moves: Moves) -> torch.Tensor:
        """f of the text up to and with each move's new token, for what follows is written anew; each but once."""
        new = moves.of(state.lookahead_scores).isnan() & moves.real
        rows = new.nonzero()[:, 0]
        if self.looks < 2 or not len(rows):
            return state.lookahead_scores
        origin, positions = state.origin, moves.positions[new]
        own = problem.select(rows)
        texts, ends = _put_in(own, origin.draft.tokens[rows], positions, moves.of(origin.candidates)[new])
        prefixes = problem.lm.draft(own.owners, texts, ends, torch.zeros_like(texts, dtype=torch.float))
        scores = own.prefix_score(prefixes).to(state.lookahead_scores.dtype)
        return state.lookahead_scores.index_put((rows, positions, moves.columns[new]), scores)

    def _choose(self, origin: Rollout, moves: Moves, scores: torch.Tensor, rng: Rng) -> Moves:
        """Of several single moves the `width` best, by what f saw of each and what the LM thinks of it."""
        scores = scores.masked_fill(~moves.real | scores.isnan(), 0.0)
        count = moves.real.sum(-1, keepdim=True).clamp(min=2)
        centred = (scores - scores.sum(-1, keepdim=True) / count).masked_fill(~moves.real, 0.0)
        spread = (centred.square().sum(-1, keepdim=True) / (count - 1)).sqrt().clamp(min=1e-9)
        log_weights = centred / spread / self.tau + self.lm_weight * moves.of(origin.log_probs)
        noisy = log_weights + rng.gumbel(counters(moves.of(origin.candidates), moves.positions))
        noisy = noisy.masked_fill(~moves.real, -torch.inf)
        return moves.some(noisy.topk(min(self.drafts, noisy.shape[1])).indices)

    def _first_drafts(self, problem: Problem, rows: torch.Tensor) -> tuple[torch.Tensor, Drawing]:
        """Of which rows the drafts are that these [a] begin with, one after the other, and how each is drawn.

        With seed 0 it is one, the likeliest; where the request itself draws, they are drawn as it says.
        """
        asked = problem.drawing.select(rows)
        drawn = asked.temperature > 0
        seeds = torch.tensor([problem.requests[row].seed for row in rows.tolist()], device=rows.device)
        likeliest = (seeds == 0) & ~drawn
        counts = torch.where(likeliest, 1, self.drafts)
        which = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
        number = torch.arange(len(which), device=rows.device) - (counts.cumsum(0) - counts)[which]
        own, asked = (likeliest | drawn)[which], asked.select(which)
        temperature, top_p = torch.where(own, asked.temperature, self.start), torch.where(own, asked.top_p, START_TOP_P)
        return rows[which], Drawing(temperature, top_p, asked.rng.fold(number))

    def _write(self, problem: Problem, state: ClimbState, moves: Moves) -> tuple[Best, torch.Tensor]:
        """The moves made, what follows each written anew by the LM, and first drafts of rows that have no text yet.

        Of each row's drafts the best, and how many there were: [B].
        """
        origin, width, n = state.origin, moves.positions.shape[1], state.origin.draft.tokens.shape[1]
        going, new = state.begun.nonzero()[:, 0], (~state.begun).nonzero()[:, 0]
        rows = going.repeat_interleave(width)
        positions, tokens = moves.positions[going].flatten(), moves.of(origin.candidates)[going].flatten()
        several = problem.select(rows)
        changed, ends = _put_in(several, origin.draft.tokens[rows], positions, tokens)
        place = torch.arange(n, device=rows.device)
        forced = changed.masked_fill((place < positions[:, None]) | (place >= ends[:, None]), FREE)
        starts = torch.where(moves.real[going].flatten(), positions, n)
        if len(new):
            first, drawing = self._first_drafts(problem, new)
            rows, starts = torch.cat([rows, first]), torch.cat([starts, torch.zeros_like(first)])
            forced = torch.cat([forced, forced.new_full((len(first), n), FREE)])
            several = problem.select(rows)._replace(drawing=several.drawing.join(drawing))
        best = self._best(problem, several, rows, Resumed(origin, starts, rows), forced)
        return best, rows.bincount(minlength=len(state.begun))

    def _best(
        self,
        problem: Problem,
        several: Problem,
        owners: torch.Tensor,
        resumed: Resumed | None,
        forced: torch.Tensor | None,
    ) -> Best:
        """Several drafts, of the rows that `owners` says; of each row's the one with the highest objective."""
        limits, extra = several.row_limits, _extra_candidates(several)
        written = rollout(
            several.lm, several.prompts, several.rows, limits, None, self.top_k, extra, resumed, several.draw, forced
        )
        own = owners == torch.arange(len(problem.rows), device=owners.device)[:, None]
        best = several.objective(written.draft).expand(own.shape).masked_fill(~own, -torch.inf).max(-1)
        rows = torch.where(best.values.isinf(), own.int().argmax(-1), best.indices)
        chosen = written.select(rows)
        verdicts = several.judge(written.draft)
        problem.verdicts.remember(chosen.draft, [verdicts[row] for row in rows.tolist()])
        lowest = written.draft.perplexity.expand(own.shape).masked_fill(~own, torch.inf).amin(-1)
        moves = torch.full_like(chosen.draft.tokens, FREE) if forced is None else forced[rows]
        return Best(chosen, best.values, lowest, moves)


def _extra_candidates(problem: Problem) -> list[list[int]]:
    """Tokens that each row's constraint names and that may be written: candidates at every position."""
    vocabulary = problem.lm.vocabulary
    return [_allowed(one.constraint.wanted(vocabulary), one.limits.forbidden) for one in problem.requests]


def _allowed(tokens: list[int], forbidden: Forbidden | None) -> list[int]:
    """Of the tokens a constraint names those that may be written."""
    return tokens if forbidden is None else [token for token in tokens if not forbidden.tokens[token]]


def _put_in(
    problem: Problem, texts: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row [B, n] with its move [B] made, a whole word where a token begins one; and where the change ends."""
    changed = texts.scatter(1, positions[:, None], tokens[:, None])
    ends = positions + 1
    phrases = {id(one): one.phrases(problem.lm.vocabulary) for one in problem.constraints}
    for row, (constraint, token) in enumerate(zip(problem.constraints, tokens.tolist(), strict=True)):
        if pieces := phrases[id(constraint)].get(token):
            start = int(positions[row])
            pieces = pieces[: problem.requests[row].limits.length - start]
            ends[row] = start + len(pieces)
            changed[row, start : start + len(pieces)] = torch.tensor(pieces, device=texts.device)
    return changed, ends
