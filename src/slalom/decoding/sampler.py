"""The contract of a sampler, the request of one row, and the problem of all rows that a sampler works on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Draw, Limits, Prompts
from slalom.constraints.constraint import Constraint, ToRead, Verdict
from slalom.decoding.drawing import Drawing
from slalom.decoding.objective import Objective, worthless
from slalom.decoding.randomness import Rng
from slalom.types import Draft, Prompt

DEFAULT_OBJECTIVE = Objective()
DRAW = 0  # RNG stream id of drawn rollouts


class Stop(NamedTuple):
    """When a row may leave: satisfied, and fluent; or satisfied for long enough."""

    degree: float  # of satisfaction
    fluent: float = math.inf  # perplexity at the most, in units of what is usual for the row
    patience: int = 0  # drafts it goes on after the first that is satisfied, for one that is fluent as well


@dataclass(frozen=True)
class Preset:
    """Settings of a whole run."""

    sampler: Sampler
    steps: int  # drafts at the most
    stop: Stop | None = None  # when a row may leave before that
    choice: str = "score"  # which draft is best: by "score", "joint" with fluency, or simply the "latest"
    temperature: float = 0.0  # of the rollouts; 0 is greedy
    top_p: float = 1.0  # of the rollouts
    objective: Objective = DEFAULT_OBJECTIVE  # how "joint" weighs f and fluency


class Request(NamedTuple):
    """One text to write. It is the same text alone, in any batch, and whenever it joins."""

    prompt: Prompt
    seed: int
    constraint: Constraint
    limits: Limits
    settings: Preset
    told: str | None = None  # what the LM was asked for, in a sentence


class Verdicts:
    """What is known of the latest drafts, so that each is judged once however often it is asked for."""

    def __init__(self) -> None:
        self._known: list[tuple[Draft, list[Verdict]]] = []

    def of(self, draft: Draft) -> list[Verdict] | None:
        """Those of a draft, if it is one of the latest two."""
        return next((verdicts for known, verdicts in self._known if known is draft), None)

    def remember(self, draft: Draft, verdicts: list[Verdict]) -> list[Verdict]:
        """Keep what is known of a draft, and of the one before it."""
        self._known = [*self._known[-1:], (draft, verdicts)]
        return verdicts


class Problem(NamedTuple):
    """What is to be written: which prompt each row continues, and each row's own request."""

    lm: LanguageModel
    prompts: Prompts
    rows: torch.Tensor  # [B], row i continues prompt rows[i]
    requests: list[Request]  # one a row
    drawing: Drawing
    verdicts: Verdicts

    @staticmethod
    def of(lm: LanguageModel, requests: list[Request]) -> Problem:
        """These requests, their different prompts read once."""
        different = list(dict.fromkeys(request.prompt for request in requests))
        owners = torch.tensor([different.index(request.prompt) for request in requests], device=lm.device)
        settings = [request.settings for request in requests]
        rng = Rng.from_seeds([request.seed for request in requests], lm.device).fold(DRAW)
        temperature, top_p = (
            torch.tensor([getattr(one, name) for one in settings], dtype=torch.float, device=lm.device)
            for name in ("temperature", "top_p")
        )
        drawing = Drawing(temperature, top_p, rng)
        return Problem(lm, lm.read(different), owners, requests, drawing, Verdicts())

    def select(self, rows: list[int] | torch.Tensor) -> Problem:
        """The same for some of the rows; a row may come several times."""
        listed = torch.as_tensor(rows, device=self.rows.device)
        requests = [self.requests[row] for row in listed.tolist()]
        return self._replace(
            rows=self.rows[listed], requests=requests, drawing=self.drawing.select(listed), verdicts=Verdicts()
        )

    def join(self, other: Problem) -> Problem:
        """The rows of both; prompts that no row continues any more are dropped."""
        mine, their = (own._compact() for own in (self, other))
        return Problem(
            self.lm,
            mine.prompts.join(their.prompts),
            torch.cat([mine.rows, their.rows + len(mine.prompts.prompts)]),
            self.requests + other.requests,
            self.drawing.join(other.drawing),
            Verdicts(),
        )

    def _compact(self) -> Problem:
        used, rows = self.rows.unique(return_inverse=True)
        return self._replace(prompts=self.prompts.select(used.tolist()), rows=rows)

    def redrawn(self, rng: Rng) -> Problem:
        """The same with other random numbers where tokens are drawn."""
        return self._replace(drawing=self.drawing._replace(rng=rng))

    def judge(self, draft: Draft) -> list[Verdict]:
        """Every row's draft, by the row's own constraint."""
        if (known := self.verdicts.of(draft)) is not None:
            return known
        self._read_together(draft)
        found: dict[int, Verdict] = {}
        for constraint, n, rows in self.groups():
            found.update(zip(rows, constraint.judge(draft.select(rows).trimmed(n)).verdicts(), strict=True))
        return self.verdicts.remember(draft, [found[row] for row in range(len(self.requests))])

    def candidate_scores(self, draft: Draft, candidates: torch.Tensor) -> torch.Tensor:
        """f's gradient at candidates [B, n, k], each row's by its own constraint, with one spelling a word."""
        scores = torch.zeros(candidates.shape, device=candidates.device)
        for constraint, n, rows in self.groups():
            own = constraint.one_spelling().candidate_scores(draft.select(rows).trimmed(n), candidates[rows, :n])
            scores[rows, :n] = own.to(scores.dtype)
        return scores

    def prefix_score(self, draft: Draft) -> torch.Tensor:
        """What the beginnings of texts promise, each row's by its own constraint: [B]."""
        self._read_together(draft)
        scores = torch.zeros(len(draft.texts), device=self.rows.device)
        for constraint, n, rows in self.groups():
            scores[rows] = constraint.prefix_score(draft.select(rows).trimmed(n)).to(scores.dtype)
        return scores

    def _read_together(self, draft: Draft) -> None:
        """Have every encoder read the texts of all its rows at once, before each group of rows asks for its own."""
        groups = self.groups()
        if len(groups) < 2:
            return
        asked: dict[int, list[ToRead]] = {}
        for constraint, n, rows in groups:
            for one in constraint.to_read(draft.select(rows).trimmed(n)):
                asked.setdefault(id(one.encoder), []).append(one)
        for several in asked.values():
            several[0].read([text for one in several for text in one.texts], draft.tokens.device)

    def groups(self) -> list[tuple[Constraint, int, list[int]]]:
        """Rows with the same constraint and length, with both: a constraint may ask how long a text is to be."""
        rows: dict[tuple[int, int], list[int]] = {}
        for row, request in enumerate(self.requests):
            rows.setdefault((id(request.constraint), request.limits.length), []).append(row)
        return [(self.requests[own[0]].constraint, n, own) for (_, n), own in rows.items()]

    def objective(self, draft: Draft) -> torch.Tensor:
        """Each row's own objective: [B]."""
        rows = zip(self.requests, self.judge(draft), draft.perplexity.tolist(), draft.texts, strict=True)
        values = [
            one.settings.objective.value(verdict, perplexity, worthless(one.prompt, text, one.limits.ends_with))
            for one, verdict, perplexity, text in rows
        ]
        return torch.tensor(values, device=self.rows.device)

    @property
    def constraints(self) -> list[Constraint]:
        """Each row's."""
        return [request.constraint for request in self.requests]

    @property
    def row_limits(self) -> list[Limits]:
        """Each row's."""
        return [request.limits for request in self.requests]

    @property
    def constraint(self) -> Constraint:
        """The one all rows share, for samplers that do not mix: with one spelling a word."""
        return self.requests[0].constraint.one_spelling()

    @property
    def limits(self) -> Limits:
        """The ones all rows share, for samplers that do not mix."""
        return self.requests[0].limits

    @property
    def owners(self) -> list[Prompt]:
        """Each row's prompt."""
        return [request.prompt for request in self.requests]

    @property
    def greedy(self) -> bool:
        """Whether no row draws its tokens."""
        return not bool((self.drawing.temperature > 0).any())

    @property
    def draw(self) -> Draw | None:
        """How a rollout draws its tokens, unless all rows take the likeliest."""
        return None if self.greedy else self.drawing.draw


class Sampler(Protocol):
    """A frozen dataclass of knobs with three functions. A state is a NamedTuple whose tensors have a row per row.

    A state may say which perplexity is usual for each row, as `usual_perplexity` [B]; else the first draft's is. It may
    show the bias tokens or the move that made its draft, as `proposed` [B, n], FREE where there is none; and how many
    drafts its step wrote, as `drafts` [B], where that is not the sampler's `drafts`.
    A sampler that `mixes` takes rows of any constraint and limits together, and its states have a `join`; any other
    gets rows that share both and began together. One that mixes may have a `begin(problem)`: a state of rows without a
    draft, whose next step writes what `init` would have; so they can join others before their first draft.
    A sampler with knobs that are measured LM by LM has a `for_lm(name)`: itself with those of an LM.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]
    paper: ClassVar[str]  # who published it
    cost: ClassVar[str]  # what a step computes
    mixes: ClassVar[bool]
    blockwise: ClassVar[bool]  # whether long texts are written block by block

    @property
    def drafts(self) -> int:
        """How many drafts a step writes for every row, at the most."""

    @classmethod
    def presets(cls, constraint: Constraint) -> dict[str, Preset]:
        """Settings of a whole run for such a wish: `default`, and others by name."""

    def stronger(self, strength: float) -> Self:
        """The same sampler pulling so many times as hard."""

    def init(self, problem: Problem, rng: Rng) -> Any:
        """The state before the first step."""

    def step(self, problem: Problem, state: Any, rng: Rng) -> Any:
        """The next state."""

    def read(self, problem: Problem, state: Any) -> Draft:
        """The state's draft."""
