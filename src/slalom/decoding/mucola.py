"""Multiple constraints by Langevin dynamics: a text on the embedding table, moved by the LM's energy and multipliers.

Each iteration goes down the gradient of NLL - sum_k lambda_k f_k at the tokens' embeddings, adds noise and takes the
nearest token at every position, so that a text is always real tokens. f_k is then the real text's score, and a
multiplier grows while its constraint falls short of the goal.

Where we leave the original. Its classifiers read a linear map of the LM's table, so that f's gradient at an embedding,
times a token's embedding, is f's gradient at that token's one-hot entry. We take those entries: the same where a
constraint reads the LM's table, and open to any other (its own tokenizer, keywords), whose straight-through gradient
would reach the embedding only through a softmax over the vocabulary that is all but flat. Lengths are measured in the
table's spacing and gradients in nats per spacing, not in units of GPT-2-large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch

from slalom.backbone.graph import output_table
from slalom.backbone.model import LanguageModel, Reading
from slalom.backbone.placement import double
from slalom.backbone.rollout import best_allowed, finished, rollout
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.constraint import Constraint
from slalom.decoding.bias import geometry
from slalom.decoding.knobs import knob
from slalom.decoding.randomness import Rng
from slalom.decoding.relaxation import entries_at, real_until
from slalom.decoding.sampler import Preset, Problem, Stop
from slalom.types import Draft

SETTLED = 5  # iterations without a change after which a text that fulfils everything is a solution
PERIOD = 50  # iterations after which every multiplier is brought up to date
LEAST = 0.1  # shortfall at the least of a wish that is not fulfilled
RATE_GROWTH, RATE_MOST = 0.04, 1.8  # an iteration, and the cap: the step size of a stuck solution, in units of `lr`
PATIENCE = (140, 40)  # iterations without a change after which a row rests: without and with a solution
SAMPLED = 1000  # tokens whose nearest neighbours tell the table's spacing


class Energy(NamedTuple):
    """What the LM and the constraints say of a text."""

    log_probs: torch.Tensor  # [B, n], the LM's; 0 past a row's end
    slope: torch.Tensor  # [B, n, d], the gradient of the summed NLL at the embeddings
    excess: torch.Tensor  # [B, K], how far each constraint is beyond its goal; negative where it falls short
    entries: torch.Tensor  # [B, K, n, V], the gradient of each constraint at the one-hots

    def select(self, rows: list[int] | torch.Tensor) -> Energy:
        """Only these rows."""
        return Energy(*(tensor[rows] for tensor in self))

    def put(self, rows: torch.Tensor, other: Energy) -> Energy:
        """With others in these rows, in place."""
        for mine, new in zip(self, other, strict=True):
            mine[rows] = new
        return self


class Solution(NamedTuple):
    """The latest text of each row that fulfilled everything and stayed, if there is one."""

    found: torch.Tensor  # bool [B]
    tokens: torch.Tensor  # [B, n]
    log_probs: torch.Tensor  # [B, n]

    def select(self, rows: list[int] | torch.Tensor) -> Solution:
        """Only these rows."""
        return Solution(*(tensor[rows] for tensor in self))

    def replaced(self, new: torch.Tensor, tokens: torch.Tensor, log_probs: torch.Tensor) -> Solution:
        """With new ones in some rows, bool [B]."""
        return Solution(
            self.found | new,
            torch.where(new[:, None], tokens, self.tokens),
            torch.where(new[:, None], log_probs, self.log_probs),
        )


class MuCoLaState(NamedTuple):
    """The texts, what is known of them, and every row's own multipliers and step size."""

    tokens: torch.Tensor  # [B, n]; from a row's end on, EOS
    energy: Energy
    multipliers: torch.Tensor  # [B, K]
    rate: torch.Tensor  # [B], the step size
    unchanged: torch.Tensor  # [B], for how many iterations the text has stood
    resting: torch.Tensor  # bool [B], rows that move no more
    solution: Solution
    draft: Draft
    iterations: int

    def select(self, rows: list[int]) -> MuCoLaState:
        """Only these rows."""
        return MuCoLaState(
            self.tokens[rows],
            self.energy.select(rows),
            self.multipliers[rows],
            self.rate[rows],
            self.unchanged[rows],
            self.resting[rows],
            self.solution.select(rows),
            self.draft.select(rows),
            self.iterations,
        )


@dataclass(frozen=True)
class MuCoLa:
    """Langevin steps of the whole text in embedding space, each back onto the table; a multiplier per constraint."""

    name: ClassVar[str] = "mucola"
    paper: ClassVar[str] = "Kumar, Paria and Tsvetkov, EMNLP 2022"
    cost: ClassVar[str] = "`inner` times an LM pass over the whole text with its gradient, and one of each part of f"
    mixes: ClassVar[bool] = False
    blockwise: ClassVar[bool] = False
    drafts: ClassVar[int] = 1

    goal: float = knob(2.0, "the margin each classifier must reach (2 is a probability of 0.88)")
    lr: float = knob(0.25, "step size, where the table's spacing is 1", least=0)
    noise: float = knob(0.5, "noise of the first iteration, where the table's spacing is 1", least=0)
    last_noise: float = knob(0.05, "noise after the cooling", least=0)
    cooling: int = knob(50, "iterations over which the noise falls, by the same factor each", least=1)
    growth: float = knob(1.0, "how much of its shortfall a multiplier grows by when it does", least=0)
    damping: float = knob(0.1, "share of its shortfall that presses a constraint besides its multiplier", least=0)
    wait: int = knob(0, "iterations before constraints press (the original has 50 for keywords)", least=0)
    always: bool = knob(False, "move rows too whose first text fulfils everything already")
    inner: int = knob(25, "iterations in a step", least=1)

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Ours, fewer and quieter iterations; the original's: 300, for detoxification 200, for keywords 500.

        `paper` has the original's noise too, `authors` its number of iterations with our noise and choice.
        """
        keywords, detoxify = (constraint.kind == kind for kind in ("words", "detoxification"))
        goal = 5.0 if detoxify else 2.0
        iterations = 500 if keywords else 200 if detoxify else 300
        paper = cls(goal=goal, wait=50 if keywords else 0)
        original = Preset(paper, steps=1 + iterations // paper.inner, temperature=1.0, top_p=0.96)
        quiet = Preset(replace(paper, inner=10, noise=0.1), steps=6, choice="joint", temperature=0.8, top_p=0.96)
        if keywords:  # done at the first text with the words, mostly soon after the wait
            quiet = replace(quiet, steps=31, stop=Stop(1.0), choice=original.choice, temperature=1.0)
        long = replace(quiet, sampler=replace(paper, noise=0.1), steps=original.steps)
        return {"default": quiet, "paper": original, "authors": long}

    def stronger(self, strength: float) -> Self:
        """What presses, times the strength."""
        return replace(self, growth=strength * self.growth, damping=strength * self.damping)

    def init(self, problem: Problem, rng: Rng) -> MuCoLaState:
        """The LM's own text, drawn from the nucleus if the run says so."""
        vocabulary = problem.lm.vocabulary
        geometry(vocabulary), spacing(vocabulary), head_map(problem.lm)  # made now, while little else is in memory
        draft = rollout(problem.lm, problem.prompts, problem.rows, problem.limits, draw=problem.draw).draft
        tokens = draft.tokens.masked_fill(~draft.real, vocabulary.eos[0]) if vocabulary.eos else draft.tokens
        energy = self._energy(problem, tokens)
        size = len(tokens)
        fulfilled = (energy.excess >= 0).all(-1)
        return MuCoLaState(
            tokens,
            energy,
            torch.zeros_like(energy.excess),
            torch.full((size,), self.lr, device=tokens.device),
            torch.zeros(size, dtype=torch.long, device=tokens.device),
            fulfilled & (not self.always),
            Solution(torch.zeros_like(fulfilled), tokens, energy.log_probs),
            draft,
            0,
        )

    @torch.no_grad()
    def step(self, problem: Problem, state: MuCoLaState, rng: Rng) -> MuCoLaState:
        """Several iterations; a row's draft is its solution, or while it has none the text it is at."""
        state = state._replace(energy=Energy(*(tensor.clone() for tensor in state.energy)))  # changed in place
        for iteration in range(state.iterations, state.iterations + self.inner):
            if state.resting.all():
                break
            state = self._iterate(problem, state, iteration, rng.fold(iteration))
        found = state.solution.found[:, None]
        tokens = torch.where(found, state.solution.tokens, state.tokens)
        log_probs = torch.where(found, state.solution.log_probs, state.energy.log_probs)
        return state._replace(draft=_draft(problem, tokens, log_probs), iterations=state.iterations + self.inner)

    def read(self, problem: Problem, state: MuCoLaState) -> Draft:
        """The row's solution; while it has none, its present text."""
        return state.draft

    def _iterate(self, problem: Problem, state: MuCoLaState, iteration: int, rng: Rng) -> MuCoLaState:
        """One turn of the original's loop: Langevin step, projection, multipliers, step size."""
        energy, excess = state.energy, state.energy.excess
        unchanged = state.unchanged + 1
        stuck = unchanged > 1
        solved = (excess >= 0).all(-1) & (unchanged == SETTLED)
        solution = state.solution.replaced(solved, state.tokens, energy.log_probs)

        press = self._pressure(state.multipliers, excess) * (iteration >= self.wait)
        places = self._langevin(problem.lm.vocabulary, state, iteration, rng)
        pull = state.rate[:, None, None] * torch.einsum("bk,bknv->bnv", press, energy.entries)
        tokens = self._project(problem, state, places, pull)
        changed = (tokens != state.tokens).any(-1)
        rows = changed.nonzero()[:, 0]
        if len(rows):
            energy = energy.put(rows, self._energy(problem.select(rows), tokens[rows]))

        short = excess < 0
        regular = short & (state.multipliers < 1e-6) | (iteration % PERIOD == 0)
        grows = torch.where(stuck[:, None], short, regular) & (iteration >= self.wait)
        multipliers = (state.multipliers - grows * self.growth * excess).clamp(min=0)
        grown = (state.rate + RATE_GROWTH * self.lr).clamp(max=RATE_MOST * self.lr)
        rate = torch.where(stuck & solution.found, grown, state.rate)
        patience = torch.where(solution.found, PATIENCE[1], PATIENCE[0])
        return state._replace(
            tokens=tokens,
            energy=energy,
            multipliers=multipliers,
            rate=torch.where(solved, self.lr, rate),
            unchanged=unchanged.masked_fill(changed, 0),
            resting=state.resting | (unchanged >= patience),
            solution=solution,
        )

    def _pressure(self, multipliers: torch.Tensor, excess: torch.Tensor) -> torch.Tensor:
        """The weight of each constraint's gradient, [B, K]: the multiplier, damped as Platt and Barr do."""
        damped = self.damping * excess
        idle = (excess >= 0) & (multipliers <= damped)
        return multipliers - damped.masked_fill(idle, 0.0)

    def _langevin(self, vocabulary: Vocabulary, state: MuCoLaState, iteration: int, rng: Rng) -> torch.Tensor:
        """Where the LM's energy and the noise carry each embedding, in spacings: [B, n, d]."""
        unit = spacing(vocabulary)
        places = geometry(vocabulary).table[state.tokens] / unit
        rate = state.rate[:, None, None]
        n, width = places.shape[1:]
        counters = torch.arange(n * width, device=places.device).view(1, n, width).expand(len(places), -1, -1)
        fallen = min(1.0, iteration / self.cooling)
        noise = self.noise ** (1 - fallen) * self.last_noise**fallen if self.noise and self.last_noise else 0.0
        return places - rate * unit * state.energy.slope + (2 * rate).sqrt() * noise * rng.normal(counters)

    def _project(self, problem: Problem, state: MuCoLaState, places: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        """The nearest token to each place [B, n, d], pulled by what f says of every token: [B, n]."""
        vocabulary, eos = problem.lm.vocabulary, problem.lm.vocabulary.eos
        scores = nearness(vocabulary, places).add_(pull)
        own = scores.gather(-1, state.tokens[..., None])
        never = vocabulary.never_candidates
        if problem.limits.forbidden is not None:
            never = never | problem.limits.forbidden.tokens
        scores.masked_fill_(never, -torch.inf).scatter_(-1, state.tokens[..., None], own)
        past = torch.arange(places.shape[1], device=places.device) > real_until(state.tokens, eos)[:, None]
        tokens = torch.where(past | state.resting[:, None], state.tokens, scores.argmax(-1))
        return _without_forbidden(problem, tokens, scores)

    def _energy(self, problem: Problem, tokens: torch.Tensor) -> Energy:
        """All that hangs on the tokens, [B, n]."""
        lm, prompts = problem.lm, problem.owners
        tokens = tokens.clone()  # a rollout's own may not enter a graph
        counted = torch.arange(tokens.shape[1], device=tokens.device) <= real_until(tokens, lm.vocabulary.eos)[:, None]
        with torch.enable_grad():
            embeddings = lm.embed(tokens).requires_grad_()
            nll = dot_plus_plus(lm.continued(prompts, embeddings), embeddings, tokens, head_map(lm))
            (slope,) = torch.autograd.grad((nll * counted).sum(), embeddings)
        draft = _draft(problem, tokens, -nll.detach())
        parts = [part for _, part in problem.constraint.terms()]
        entries = [entries_at(part, lm.vocabulary, prompts, tokens) for part in parts]
        excess = [self._excess(part, draft) for part in parts]
        return Energy(draft.log_probs, slope * counted[..., None], torch.stack(excess, 1), torch.stack(entries, 1))

    def _excess(self, part: Constraint, draft: Draft) -> torch.Tensor:
        """How far beyond its goal a constraint is: a classifier's margin; for others, whether they are satisfied."""
        judged = part.judge(draft)
        if part.probability(judged.score) is not None:
            return judged.score - self.goal
        return (judged.score - part.full_score).clamp(max=-LEAST).masked_fill(judged.satisfied, 0.0)


def dot_plus_plus(
    reading: Reading, embeddings: torch.Tensor, tokens: torch.Tensor, head: torch.Tensor | None
) -> torch.Tensor:
    """-log p of each token, differentiable in its own embedding too, as the row of the head it is: [B, n].

    On the table exactly the LM's. The direct gradient is -(1 - p) h; with a head of its own, carried by the map `head`.
    """
    log_p = reading.logits.gather(-1, tokens[..., None])[..., 0] - reading.logits.logsumexp(-1)
    moved = embeddings - embeddings.detach()  # 0, but for its gradient
    if head is not None:
        moved = moved @ head
    return -log_p - (1 - log_p.exp()).detach() * (reading.hidden.detach() * moved).sum(-1)


def nearness(vocabulary: Vocabulary, places: torch.Tensor) -> torch.Tensor:
    """Minus half the squared distance to every token, but for a constant, in spacings: [B, n, d] → [B, n, V]."""
    shape, unit = geometry(vocabulary), spacing(vocabulary)
    return (places / unit) @ shape.table.T - shape.squares / (2 * unit**2)


_SPACINGS: WeakKeyDictionary[Vocabulary, float] = WeakKeyDictionary()
_HEADS: WeakKeyDictionary[Vocabulary, torch.Tensor] = WeakKeyDictionary()


def spacing(vocabulary: Vocabulary) -> float:
    """The median distance from a token to its nearest neighbour on the table, among tokens that may be proposed."""
    if vocabulary not in _SPACINGS:
        table = vocabulary.embeddings[~vocabulary.never_candidates].float()
        some = torch.arange(0, len(table), max(1, len(table) // SAMPLED), device=table.device)
        nearest = [torch.cdist(table[part], table).topk(2, largest=False).values[:, 1] for part in some.split(100)]
        _SPACINGS[vocabulary] = torch.cat(nearest).median().item()
    return _SPACINGS[vocabulary]


def head_map(lm: LanguageModel) -> torch.Tensor | None:
    """The linear map from the input table to the output table, [d, d], by least squares; none if they are one."""
    if lm.model.get_output_embeddings().weight is lm.model.get_input_embeddings().weight:
        return None
    table, head = lm.vocabulary.embeddings, output_table(lm.model)
    if lm.vocabulary not in _HEADS:
        pairs = [(double(own), double(out)) for own, out in zip(table.split(4096), head.split(4096), strict=True)]
        gram = torch.stack([own.T @ own for own, _ in pairs]).sum(0)
        cross = torch.stack([own.T @ out for own, out in pairs]).sum(0)
        _HEADS[lm.vocabulary] = torch.linalg.lstsq(gram, cross).solution.float().to(table.device)
    return _HEADS[lm.vocabulary]


def _draft(problem: Problem, tokens: torch.Tensor, log_probs: torch.Tensor) -> Draft:
    """Tokens as a draft, which ends at an EOS, or where the limits say."""
    lengths = real_until(tokens, problem.lm.vocabulary.eos)
    ended = lengths < tokens.shape[1]
    return finished(problem.lm, problem.owners, tokens, lengths, log_probs, ended, problem.limits)


def _without_forbidden(problem: Problem, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The same tokens [B, n], but a row that writes what is forbidden is put together anew, from left to right."""
    forbidden, prompts = problem.limits.forbidden, problem.owners
    if forbidden is None:
        return tokens
    listed = tokens.tolist()
    bad = [row for row, own in enumerate(listed) if forbidden.written(prompts[row], own)]
    for row in bad:
        before: list[int] = []
        for i in range(len(listed[row])):
            before += best_allowed(scores[row : row + 1, i], [prompts[row]], [before], forbidden).tolist()
        tokens[row] = torch.tensor(before, device=tokens.device)
    return tokens
