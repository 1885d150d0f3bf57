"""Rows to finished texts on one LM: all share the scheduler's batch, whatever they ask for; a bad row fails alone."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import FinishedLine, Line, Record, is_openai
from slalom.frontends.batch.openai_lines import OpenAILine, Tokens, answer, row_fields
from slalom.frontends.batch.rows import WISH_FIELDS, RowSpec, kept, row_spec
from slalom.frontends.specs import LoadSpec, TextSpec, checked

if TYPE_CHECKING:
    from slalom.api import SteerableModel, Text
    from slalom.constraints.constraint import Constraint
    from slalom.decoding.scheduler import Finished

OPEN = 256  # texts asked for at once; the scheduler has room for fewer, the others wait
CONSTRAINTS = 256  # kept for rows with the same wish
DIGITS = 4  # of a number in the output: what comes after them differs with the number of threads
TIMINGS = ("seconds", "tokens_per_second")  # differ from run to run: no part of the output


class Work(NamedTuple):
    """What every row shares: the model, and what rows leave open. Plain values, so that it can travel."""

    load: dict[str, Any]
    defaults: dict[str, Any]


@dataclass
class _Open:
    """A row under way."""

    line: Line
    spec: RowSpec
    tickets: list[int]
    openai: OpenAILine | None  # the line of OpenAI's that it was
    ends: dict[int, Finished] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        return len(self.ends) == len(self.tickets)


class TextWriter:
    """Holds an LM and the constraints of earlier rows, and writes the texts of rows."""

    def __init__(self, work: Work, lm: SteerableModel | None = None) -> None:
        self.defaults = work.defaults
        self.lm = lm or load_lm(LoadSpec(**work.load))
        precision = str(self.lm.dtype).removeprefix("torch.")
        self._written_by = f"{self.lm.engine.name} in {precision} on {self.lm.device.type}"
        self._constraint = functools.lru_cache(maxsize=CONSTRAINTS)(_constraint)

    def write(self, lines: Iterator[Line]) -> Iterator[list[FinishedLine]]:
        """Rows as they are finished, some at a time and in any order; they are read when there is room for them."""
        from slalom.decoding.scheduler import Scheduler

        scheduler = Scheduler(self.lm)
        open_rows: dict[int, _Open] = {}  # by ticket
        while True:
            failed = []
            for line in _while_room(lines, open_rows):
                try:
                    row = self._admitted(line, scheduler)
                except Exception as error:  # whatever is wrong with a row, the others are written
                    failed.append(FinishedLine.failed(line, _reason(error)))
                else:
                    open_rows.update(dict.fromkeys(row.tickets, row))
            finished = []
            for end in scheduler.step() if scheduler.busy else []:
                row = open_rows.pop(end.ticket)
                row.ends[end.ticket] = end
                if row.done:
                    finished.append(self._read(row))
            if failed or finished:
                yield [*failed, *finished]
            elif not scheduler.busy:
                return

    def _admitted(self, line: Line, scheduler: Any) -> _Open:
        """A row's texts as requests of the scheduler: all of them, or none if it is refused."""
        if line.fields is None:
            raise SlalomError(line.error or "the row cannot be read")
        openai = checked(OpenAILine, line.fields) if is_openai(line.fields) else None
        fields = row_fields(openai, self.lm.name) if openai else line.fields
        spec = row_spec(fields, self.defaults)
        constraint = self._constraint(wish_key(spec))
        prompts = [spec.prompt] if spec.prompt is not None else [spec.messages or []]
        requests = self.lm.requests(prompts, constraint, **spec.options())
        return _Open(line, spec, [scheduler.add(request) for request in requests], openai)

    def _read(self, row: _Open) -> FinishedLine:
        """A row whose texts are written; if they cannot be read, it fails alone."""
        try:
            return self._finished(row)
        except Exception as error:
            return FinishedLine.failed(row.line, _reason(error))

    def _finished(self, row: _Open) -> FinishedLine:
        ends = [row.ends[ticket] for ticket in row.tickets]
        for end in ends:
            if end.error is not None:
                return FinishedLine.failed(row.line, _reason(end.error))
        texts = self.lm.texts([_judged_alone(self.lm, end) for end in ends])
        records = [
            {"line": row.line.line} | kept(row.spec) | self._record(text, end)
            for text, end in zip(texts, ends, strict=True)
        ]
        satisfied = sum(text.satisfied for text in texts)
        if row.openai:
            tokens = [_tokens(end) for end in ends]
            records = [answer(row.openai, row.line.line, self.lm.name, records, tokens)]
        number, line = row.line.number, row.line.line
        return FinishedLine(number, line, records, len(texts), satisfied, row.spec.id, written_by=self._written_by)

    def _record(self, text: Text, end: Finished) -> Record:
        """A text as `slalom generate --json` prints it, without what differs from run to run."""
        from slalom.api import Steered

        sampler = end.request.settings.sampler.name
        (record,) = Steered([text], 0.0, 0.0, sampler, self.lm.name, self.lm.engine.name).records()
        return {name: rounded(value) for name, value in record.items() if name not in TIMINGS}


def load_lm(spec: LoadSpec) -> SteerableModel:
    """The model a specification names."""
    from slalom.api import load
    from slalom.backbone.names import DEFAULT

    return load(spec.model or DEFAULT, device=spec.device, dtype=spec.dtype, engine=spec.engine)


def wish_key(spec: TextSpec) -> str:
    """Rows of the same key share a constraint."""
    return json.dumps({name: getattr(spec, name) for name in WISH_FIELDS})


def _constraint(key: str) -> Constraint:
    return TextSpec(**json.loads(key)).constraint()


def _while_room(lines: Iterator[Line], open_rows: dict[int, _Open]) -> Iterator[Line]:
    """The next rows, as long as few texts are under way; some at a time, so that refused ones are reported too."""
    for _ in range(OPEN):
        if len(open_rows) >= OPEN or (line := next(lines, None)) is None:
            return
        yield line


def _judged_alone(lm: SteerableModel, end: Finished) -> Finished:
    """A finished text read and judged once more, by itself.

    A number's last digits depend on the texts that were in the batch with it, and these on when a run was stopped.
    """
    from slalom.decoding.objective import Seen

    if end.best is None:
        return end
    draft = end.best.draft
    draft = draft.trimmed(max(1, int(draft.lengths.item() + draft.ended.item())))
    draft = draft._replace(log_probs=lm.log_probs(draft))
    (verdict,) = end.request.constraint.judge(draft).verdicts()
    return end._replace(best=Seen(draft, verdict))


def _tokens(end: Finished) -> Tokens:
    written = 0 if end.best is None else int(end.best.draft.lengths.item())
    return Tokens(len(end.request.prompt.ids), written, end.request.limits.length)


def rounded(value: Any) -> Any:
    """Numbers with so many digits as mean something, and none that JSON does not know."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, list):
        return [rounded(one) for one in value]
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return value


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, SlalomError) else f"{type(error).__name__}: {error}"
