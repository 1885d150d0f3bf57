"""What passes between reading, writing and the side files: one line of the input, and what became of it."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

Record = dict[str, Any]


class Line(NamedTuple):
    """One row of the input, not checked yet."""

    number: int  # from 0: its place among the rows
    line: int  # where a person finds it: the line of a text file, or the row of a table, from 1
    fields: Record | None  # as they stand there; none if they cannot be read
    error: str | None = None  # why not


class FinishedLine(NamedTuple):
    """One row's texts, as they go to the output; or why there are none."""

    number: int
    line: int
    records: list[Record]
    texts: int = 0
    satisfied: int = 0  # of the texts
    id: str | int | None = None
    error: str | None = None
    written_by: str | None = None  # engine, precision and device; none if nothing was written

    @classmethod
    def failed(cls, line: Line, reason: str) -> Self:
        """A row that nothing could be written for."""
        return cls(line.number, line.line, [], id=_id(line), error=reason)

    @property
    def failure(self) -> Record:
        """The row as the file of errors has it."""
        return {"line": self.line} | ({} if self.id is None else {"id": self.id}) | {"error": self.error}


def is_openai(fields: Record) -> bool:
    """Whether a line is one of OpenAI's."""
    return "custom_id" in fields


def _id(line: Line) -> str | int | None:
    fields = line.fields or {}
    given = fields.get("id", fields.get("custom_id"))
    return given if isinstance(given, str | int) else None
