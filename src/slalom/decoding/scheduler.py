"""Requests to finished texts: the only loop. Rows join and leave between drafts, whatever they ask for."""

from __future__ import annotations

import functools
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import Forbidden
from slalom.constraints.constraint import Constraint
from slalom.decoding import blocks
from slalom.decoding.objective import CHOICES, Seen
from slalom.decoding.randomness import Rng
from slalom.decoding.sampler import Problem, Request, Sampler, Stop
from slalom.types import Draft

MOST_TOKENS = 16_384  # in memory at once: prompt and text of every row, times its drafts side by side
REMEMBERED = 256  # constraints whose forbidden words are kept at hand
BLOCKS = 1_000_003  # RNG stream id of a text's second block; the others follow


class Finished(NamedTuple):
    """One row's end: its best draft and its first, or what went wrong; and how many drafts were written."""

    ticket: int
    request: Request
    best: Seen | None
    first: Seen | None
    drafts: int
    error: Exception | None = None


class RowReport(NamedTuple):
    """What one row has after a step."""

    ticket: int
    drafts: int  # written so far, of all blocks
    block: int
    seen: Seen  # the new draft
    best: Seen  # the best of this block so far
    proposed: torch.Tensor | None = None  # [n], the bias token or move at each position, FREE elsewhere; if it has any


Callback = Callable[[list[RowReport]], None]


@dataclass
class _Row:
    """A request under way."""

    ticket: int
    request: Request
    block: Request  # what is written at present: all of the request, or a block of it
    written: list[Draft] = field(default_factory=list)  # earlier blocks
    before: int = 0  # drafts of earlier blocks
    drafts: int = 0  # of this block
    steps: int = 0  # of this block
    best: Seen | None = None
    first: Seen | None = None
    usual_perplexity: float = math.inf  # of the LM's own text here
    satisfied_at: int | None = None  # drafts of this block when the first that is good enough came

    @property
    def cost(self) -> int:
        """Tokens to be held for it."""
        return (len(self.block.prompt.ids) + self.block.limits.length) * self.block.settings.sampler.drafts

    def note(self, seen: Seen, drafts: int, proposed: torch.Tensor | None) -> RowReport:
        """Take in the best of a step's drafts, and what the sampler proposed to get it."""
        settings = self.block.settings
        if self.best is None or CHOICES[settings.choice](seen, self.best, settings.objective):
            self.best = seen
        self.first = self.first or seen
        self.steps += 1
        self.drafts += drafts
        stop = settings.stop
        if stop is not None and self.satisfied_at is None and _good_enough(stop, self.best):
            self.satisfied_at = self.drafts
        return RowReport(self.ticket, self.before + self.drafts, len(self.written), seen, self.best, proposed)

    @property
    def done(self) -> bool:
        """Whether this block has been tried long enough, or its best draft may be kept."""
        stop = self.block.settings.stop
        if self.drafts >= self.block.settings.steps:
            return True
        if stop is None or self.satisfied_at is None or not _good_enough(stop, self.best):
            return False
        assert self.best is not None
        fluent = self.best.perplexity <= stop.fluent * self.usual_perplexity
        return fluent or self.drafts - self.satisfied_at >= stop.patience


def _good_enough(stop: Stop, best: Seen | None) -> bool:
    """Whether there is a text that fulfils the wish to the asked degree."""
    return best is not None and best.verdict.degree >= stop.degree and not best.worthless


@dataclass
class _Batch:
    """Rows that one sampler works on together."""

    sampler: Sampler
    rows: list[_Row]
    problem: Problem
    rng: Rng
    state: Any = None

    def advance(self) -> list[Seen]:
        """Write every row's next draft."""
        steps = torch.tensor([row.steps + 1 for row in self.rows])
        rng = self.rng.fold(steps)
        if self.state is None:
            state = self.sampler.init(self.problem, rng)
        else:
            state = self.sampler.step(self.problem, self.state, rng)
        draft = self.sampler.read(self.problem, state)
        usual = getattr(state, "usual_perplexity", draft.perplexity)
        for row, perplexity in zip(self.rows, usual.tolist(), strict=True):
            if not row.steps:
                row.usual_perplexity = perplexity
        verdicts = self.problem.judge(draft)
        self.state = state
        own = [(number, row.block.limits, verdicts[number]) for number, row in enumerate(self.rows)]
        return [Seen(draft.select([n]).trimmed(limits.length), verdict, limits.ends_with) for n, limits, verdict in own]

    @property
    def drafts(self) -> list[int]:
        """How many the latest step wrote for each row."""
        written = getattr(self.state, "drafts", None)
        return [self.sampler.drafts] * len(self.rows) if written is None else written.tolist()

    @property
    def proposed(self) -> list[torch.Tensor | None]:
        """Each row's bias tokens or move, of samplers that have some."""
        tokens = getattr(self.state, "proposed", None)
        return [None] * len(self.rows) if tokens is None else list(tokens)

    def select(self, rows: list[int]) -> _Batch:
        """Only these rows."""
        if len(rows) == len(self.rows):
            return self
        return _Batch(
            self.sampler,
            [self.rows[row] for row in rows],
            self.problem.select(rows),
            self.rng.select(rows),
            None if self.state is None else self.state.select(rows),
        )

    def join(self, other: _Batch) -> _Batch:
        """The rows of both, each as far as it is."""
        columns = tuple(own.problem.prompts.prefix.mask.shape[1] for own in (self, other))
        return _Batch(
            self.sampler,
            self.rows + other.rows,
            self.problem.join(other.problem),
            self.rng.join(other.rng),
            self.state.join(other.state, columns),
        )


class Scheduler:
    """Writes any mix of requests together: `add` some, `step` until they are done, `cancel` what nobody wants.

    A row's text depends on its own request alone. At most `tokens` tokens are held at once; who finds no room waits.
    """

    def __init__(self, lm: LanguageModel, callbacks: tuple[Callback, ...] = (), tokens: int = MOST_TOKENS) -> None:
        self.lm = lm
        self.callbacks = callbacks
        self.tokens = tokens
        self._tickets = itertools.count()
        self._waiting: deque[_Row] = deque()
        self._batches: list[_Batch] = []
        self._forbidden: OrderedDict[Constraint, Forbidden | None] = OrderedDict()  # the latest ones asked for
        lm.vocabulary.make_tables()

    def add(self, request: Request) -> int:
        """Take a request in; its ticket. A wish that this LM cannot fulfil is refused with a SlalomError."""
        vocabulary, constraint = self.lm.vocabulary, request.constraint
        constraint.check(vocabulary, request.limits.length)
        request = request._replace(limits=request.limits._replace(forbidden=self._forbidden_by(constraint)))
        ticket = next(self._tickets)
        block = blocks.next_block(request, []) if blocks.is_long(request) else request
        assert block is not None
        self._waiting.append(_Row(ticket, request, block))
        return ticket

    def _forbidden_by(self, constraint: Constraint) -> Forbidden | None:
        """What a constraint forbids; made once for those of late."""
        if constraint not in self._forbidden:
            self._forbidden[constraint] = constraint.forbids(self.lm.vocabulary)
            if len(self._forbidden) > REMEMBERED:
                self._forbidden.popitem(last=False)
        self._forbidden.move_to_end(constraint)
        return self._forbidden[constraint]

    def cancel(self, ticket: int) -> None:
        """Forget a request, wherever it is."""
        self._waiting = deque(row for row in self._waiting if row.ticket != ticket)
        kept = [(batch, [i for i, row in enumerate(batch.rows) if row.ticket != ticket]) for batch in self._batches]
        self._batches = [batch.select(rows) for batch, rows in kept if rows]

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self._waiting or self._batches)

    def step(self) -> list[Finished]:
        """One more draft of every row there is room for; those that are done, or have failed."""
        finished: list[Finished] = []
        reports: list[RowReport] = []
        going: list[_Batch] = []
        for part, latest in self._advanced(_with_newcomers(self._batches, self._admitted(finished)), finished):
            rows = zip(part.rows, latest, part.drafts, part.proposed, strict=True)
            reports += [row.note(seen, drafts, proposed) for row, seen, drafts, proposed in rows]
            left = [number for number, row in enumerate(part.rows) if not row.done]
            finished += [end for row in part.rows if row.done and (end := self._ended(row)) is not None]
            going += [part.select(left)] if left else []
        self._batches = _merged(going)
        if reports:
            for callback in self.callbacks:
                callback(reports)
        return sorted(finished, key=lambda end: end.ticket)

    def _advanced(self, batches: list[_Batch], finished: list[Finished]) -> list[tuple[_Batch, list[Seen]]]:
        """All batches with their next drafts. Those of samplers that mix share the LM's passes where it can do that."""
        mixing = [batch for batch in batches if batch.sampler.mixes]
        tried = self.lm.engine.side_by_side([functools.partial(_tried, batch) for batch in mixing])
        advanced = [
            _advanced(batch, finished) if isinstance(latest, Exception) else [(batch, latest)]
            for batch, latest in zip(mixing, tried, strict=True)
        ]
        advanced += [_advanced(batch, finished) for batch in batches if not batch.sampler.mixes]
        return [pair for pairs in advanced for pair in pairs]

    def _admitted(self, finished: list[Finished]) -> list[_Batch]:
        """The waiting rows there is room for, in the order they came, as batches that have not begun."""
        rows = [row for batch in self._batches for row in batch.rows]
        widest = max([batch.problem.prompts.prefix.mask.shape[1] for batch in self._batches], default=0)
        groups: dict[Any, list[_Row]] = {}
        while self._waiting and (not rows or self._held([*rows, self._waiting[0]], widest) <= self.tokens):
            row = self._waiting.popleft()
            rows.append(row)
            groups.setdefault(_kind(row.block), []).append(row)
        return [batch for rows in groups.values() for batch in self._prepared(rows, finished)]

    def _held(self, rows: list[_Row], widest: int) -> int:
        """Tokens that all these hold; an engine that pads gives each the columns of the longest prompt and text."""
        if not self.lm.engine.pads:
            return sum(row.cost for row in rows)
        prompt = max([widest, *(len(row.block.prompt.ids) for row in rows)])
        text = max(row.block.limits.length for row in rows)
        return (prompt + text) * sum(row.block.settings.sampler.drafts for row in rows)

    def _prepared(self, rows: list[_Row], finished: list[Finished]) -> list[_Batch]:
        """Rows of one kind with their prompts read. If that fails, every row is tried by itself."""
        try:
            return [self._batch(rows)]
        except Exception as error:
            if len(rows) == 1:
                finished.append(_failed(rows[0], error))
                return []
        return [batch for row in rows for batch in self._prepared([row], finished)]

    def _batch(self, rows: list[_Row]) -> _Batch:
        requests = [row.block for row in rows]
        later = torch.tensor([BLOCKS + len(row.written) if row.written else 0 for row in rows])
        rng = Rng.from_seeds([request.seed for request in requests], self.lm.device)
        problem = Problem.of(self.lm, requests)
        problem = problem.redrawn(_folded(problem.drawing.rng, later))
        return _Batch(requests[0].settings.sampler, rows, problem, _folded(rng, later))

    def _ended(self, row: _Row) -> Finished | None:
        """A row whose block is done: it goes on with its next block, or is finished."""
        try:
            return self._continued(row)
        except Exception as error:
            return _failed(row, error)

    def _continued(self, row: _Row) -> Finished | None:
        assert row.best is not None
        if row.block is row.request:
            return Finished(row.ticket, row.request, row.best, row.first, row.drafts)
        row.written.append(row.best.draft)
        drafts = row.before + row.drafts
        if (following := blocks.next_block(row.request, row.written)) is not None:
            self._waiting.appendleft(_Row(row.ticket, row.request, following, row.written, drafts, first=None))
            return None
        draft = blocks.joined(row.request, row.written)
        (verdict,) = row.request.constraint.judge(draft).verdicts()
        return Finished(row.ticket, row.request, Seen(draft, verdict), row.first, drafts)


def _folded(rng: Rng, later: torch.Tensor) -> Rng:
    """Other random numbers for rows in a later block [B], its stream's id; the same for those in their first, 0."""
    folded = rng.fold(later)
    return rng._replace(keys=torch.where(later.to(rng.keys.device) > 0, folded.keys, rng.keys))


def _failed(row: _Row, error: Exception) -> Finished:
    return Finished(row.ticket, row.request, None, None, row.before + row.drafts, error)


def _kind(request: Request) -> Any:
    """Rows of the same kind are written together."""
    sampler = request.settings.sampler
    if sampler.mixes:
        return sampler
    return sampler, id(request.constraint), request.limits, request.settings.temperature, request.settings.top_p


def _tried(batch: _Batch) -> list[Seen] | Exception:
    """A batch's next drafts, or what went wrong: perhaps a pass it shared with others, so it is tried again alone."""
    try:
        return batch.advance()
    except Exception as error:
        return error


def _advanced(batch: _Batch, finished: list[Finished]) -> list[tuple[_Batch, list[Seen]]]:
    """A batch with its next drafts. If it fails, every row is tried by itself: a bad row fails alone."""
    try:
        return [(batch, batch.advance())]
    except Exception as error:
        if len(batch.rows) == 1:
            finished.append(_failed(batch.rows[0], error))
            return []
    return [pair for row in range(len(batch.rows)) for pair in _advanced(batch.select([row]), finished)]


def _with_newcomers(batches: list[_Batch], new: list[_Batch]) -> list[_Batch]:
    """Batches that have begun and new ones, which join another at once where their sampler can begin that way.

    So their first drafts are written in the same passes of the LM as the others' next ones. If that fails, they begin
    by themselves, where a bad row fails alone.
    """
    together = list(batches)
    for batch in new:
        same = [number for number, other in enumerate(batches) if other.sampler == batch.sampler]
        try:
            joined = _begun_beside(together[same[0]], batch) if same else None
        except Exception:  # whatever it is, it is met again when the newcomers begin, and told there
            joined = None
        if joined is None:
            together.append(batch)
        else:
            together[same[0]] = joined
    return together


def _begun_beside(going: _Batch, new: _Batch) -> _Batch | None:
    """A batch with newcomers that have no draft yet; none if their sampler cannot begin that way."""
    begin = getattr(new.sampler, "begin", None)
    return None if begin is None else going.join(replace(new, state=begin(new.problem)))


def _merged(batches: list[_Batch]) -> list[_Batch]:
    """Batches whose sampler lets rows join become one."""
    merged: dict[Any, _Batch] = {}
    for number, batch in enumerate(batches):
        key: Any = batch.sampler if batch.sampler.mixes else number
        try:
            merged[key] = merged[key].join(batch) if key in merged else batch
        except Exception:  # there is no memory for both as one, say: they go on apart
            merged[key, number] = batch
    return list(merged.values())


def decode(lm: LanguageModel, requests: list[Request], callbacks: tuple[Callback, ...] = ()) -> list[Finished]:
    """All of these, in the order asked. The first that fails fails all."""
    scheduler = Scheduler(lm, callbacks)
    tickets = [scheduler.add(request) for request in requests]
    found: dict[int, Finished] = {}
    while scheduler.busy:
        for end in scheduler.step():
            if end.error is not None:
                raise end.error
            found[end.ticket] = end
    return [found[ticket] for ticket in tickets]
