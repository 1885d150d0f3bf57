"""JSON lines, CSV or Parquet to rows, read as they are needed: a million take no more memory than ten."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import Line, Record, is_openai
from slalom.frontends.batch.rows import RowSpec
from slalom.frontends.options import COMMA_SEPARATED

LISTS = (*COMMA_SEPARATED, "stop", "messages")
OBJECTS = ("constraints", "weights", "knobs", "metadata")
YES_OR_NO = {"true": True, "yes": True, "false": False, "no": False}
FORMATS = (".jsonl", ".csv", ".parquet")
CHUNK = 1 << 20  # bytes, or rows of a Parquet file, read at a time
ROWS = 1024
DEEPEST = 100  # lists and objects within one another in a row: JSON is read and written by recursion


class Source(NamedTuple):
    """An input file as it was found: what tells it from another, and how many rows it has."""

    sha256: str
    rows: int
    folders: list[str]  # that its rows name: of classifiers and steers, or names on the hub
    samplers: list[str]  # likewise
    openai: bool  # whether any of them is a line of OpenAI's


def format_of(path: Path) -> str:
    """The format a file's name says."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise SlalomError(f"{path} ends in {suffix or 'nothing'!r}; a batch reads and writes {', '.join(FORMATS)}")
    return suffix


def examine(path: Path, kind: str) -> Source:
    """Fingerprint and number of rows of an input file; its columns are checked."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
    except FileNotFoundError:
        raise SlalomError(f"there is no file {path}") from None
    except OSError as error:
        raise SlalomError(f"{path} cannot be read ({error.strerror})") from None
    rows, folders, samplers, openai = 0, set[str](), set[str](), False
    for line in read_lines(path, kind):
        rows += 1
        asked = _asked(line.fields or {})
        folders |= {name for name in named_folders(asked) if isinstance(name, str)}
        samplers |= {name for name in [asked.get("sampler")] if isinstance(name, str)}
        openai |= is_openai(line.fields or {})
    if not rows:
        raise SlalomError(f"{path} has no rows; give at least one")
    return Source(digest.hexdigest(), rows, sorted(folders), sorted(samplers), openai)


def _asked(fields: Record) -> Record:
    """The fields of a row, or what the body of a line of OpenAI's has of them."""
    body = fields.get("body") if is_openai(fields) else {"slalom": fields}
    asked = body.get("slalom") if isinstance(body, dict) else None
    return asked if isinstance(asked, dict) else {}


def named_folders(asked: Record) -> list[Any]:
    """What may be a folder of a classifier or a steer."""
    knobs = asked.get("knobs")
    return [asked.get("classifier"), knobs.get("steer") if isinstance(knobs, dict) else None]


def read_lines(path: Path, kind: str) -> Iterator[Line]:
    """Every row in order; one that cannot be read says why."""
    readers = {".jsonl": _json_lines, ".csv": _csv_lines, ".parquet": _parquet_lines}
    return map(_kept, readers[kind](path))


def _kept(line: Line) -> Line:
    """The row, or why it cannot be kept: what is kept is JSON in UTF-8."""
    try:
        for name, value in (line.fields or {}).items():
            _check_text(name, "a field's name")
            _check_value(value, name)
    except ValueError as error:
        return Line(line.number, line.line, None, str(error))
    return line


def _check_value(value: Any, field: str, depth: int = 1) -> None:
    if depth > DEEPEST:
        raise ValueError(f"{field} is nested more than {DEEPEST} deep; give a flatter one")
    if isinstance(value, dict):
        for name, part in value.items():
            _check_value(name, field, depth)
            _check_value(part, field, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            _check_value(part, field, depth + 1)
    elif isinstance(value, str):
        _check_text(value, field)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{field} has {value}, which JSON cannot hold; leave it out, or give a number")
    elif value is not None and not isinstance(value, bool | int | float):
        raise ValueError(f"{field} has {value!r}, which JSON cannot hold; give texts and numbers")


def _check_text(text: str, field: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{field} has the lone surrogate {text[error.start]!r}, which is no character") from None


def _json_lines(path: Path) -> Iterator[Line]:
    number = 0
    with path.open("rb") as file:
        for place, raw in enumerate(file, 1):
            if raw.strip():
                yield _json_line(number, place, raw)
                number += 1


def _json_line(number: int, place: int, raw: bytes) -> Line:
    try:
        fields = _parsed(raw.decode("utf-8-sig" if place == 1 else "utf-8"))
    except ValueError as error:
        return Line(number, place, None, f"the line is no JSON ({error})")
    if not isinstance(fields, dict):
        shown = raw.decode().strip()[:40]
        return Line(number, place, None, f"the line is {type(fields).__name__} {shown!r}; give an object")
    return Line(number, place, fields)


def _parsed(text: str) -> Any:
    """What a text says in JSON; one nested too deeply to be read is refused as if it were none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} deep") from None


def _csv_lines(path: Path) -> Iterator[Line]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.reader(file)
            names = next(table, [])
            _check_columns(path, names)
            numbers, before = itertools.count(), table.line_num
            for cells in table:
                place, before = before + 1, table.line_num
                if cells:  # the line is not blank
                    yield _csv_line(next(numbers), place, names, cells)
    except (UnicodeDecodeError, csv.Error) as error:
        raise SlalomError(f"{path} cannot be read as CSV ({error})") from None


def _csv_line(number: int, place: int, names: list[str], cells: list[str]) -> Line:
    if len(cells) > len(names):
        more = len(cells) - len(names)
        return Line(number, place, None, f"the row has {more} more cells than the file has columns")
    try:
        fields = {name: from_cell(name, cell) for name, cell in zip(names, cells, strict=False) if cell}
    except ValueError as error:
        return Line(number, place, None, str(error))
    return Line(number, place, fields)


def from_cell(name: str, cell: str) -> Any:
    """A cell's value: lists are comma-separated or JSON, objects JSON; the rest is checked with the row."""
    if name == "tell":
        return YES_OR_NO.get(cell.lower(), cell)
    if name in OBJECTS or (name in LISTS and cell.startswith("[")):
        try:
            return _parsed(cell)
        except ValueError as error:
            raise ValueError(f"{name} is {cell!r}, which is no JSON ({error})") from None
    if name in LISTS:
        return [word.strip() for word in cell.split(",") if word.strip()]
    return cell


def _parquet_lines(path: Path) -> Iterator[Line]:
    file = _parquet_file(path)
    number = 0
    for batch in file.iter_batches(batch_size=ROWS):
        for row in range(batch.num_rows):
            yield _parquet_line(number, batch.slice(row, 1))
            number += 1


def _parquet_line(number: int, one: Any) -> Line:
    try:
        (row,) = one.to_pylist()
        fields = {name: _from_column(name, value) for name, value in row.items() if value not in (None, "")}
    except (ValueError, TypeError) as error:
        return Line(number, number + 1, None, f"the row cannot be read ({error})")
    return Line(number, number + 1, fields)


def _from_column(name: str, value: Any) -> Any:
    """A value of a Parquet column: objects may be JSON, maps, or structs, whose missing parts were not given."""
    if isinstance(value, str):
        return _from_column_text(name, value)
    if name in OBJECTS:
        pairs = _pairs(value)
        return value if pairs is None else {key: part for key, part in pairs if part is not None}
    if isinstance(value, bytes):
        return value.decode()
    return float(value) if isinstance(value, Decimal) else value


def _pairs(value: Any) -> Any:
    """The names and parts of a struct or map, which pyarrow gives as a list of tuples; none of anything else."""
    if isinstance(value, dict):
        return value.items()
    is_map = isinstance(value, list) and all(isinstance(part, tuple) for part in value)
    return dict(value).items() if is_map else None


def _from_column_text(name: str, value: str) -> Any:
    try:
        return from_cell(name, value)
    except ValueError:
        return value  # refused with the row, by the name of its field


def _parquet_file(path: Path) -> Any:
    try:
        file = parquet().ParquetFile(path)
    except (OSError, ValueError) as error:
        raise SlalomError(f"{path} cannot be read as Parquet ({error})") from None
    _check_columns(path, file.schema_arrow.names)
    return file


def parquet() -> ModuleType:
    """pyarrow's Parquet module, which is an extra."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise SlalomError("Parquet needs pyarrow: pip install 'slalom[batch]'") from None
    return pyarrow.parquet


def _check_columns(path: Path, names: list[str]) -> None:
    """A table's columns are the same in every row: one nobody knows, or two of a name, are refused at once."""
    known = RowSpec.model_fields
    for name, count in Counter(names).items():
        if count > 1:
            raise SlalomError(f"{path} has {count} columns {name!r}; give each field one")
        if name not in known:
            raise SlalomError(
                f"{path} has a column {name!r}; columns are fields of a text ({', '.join(known)}); "
                "what should only be kept goes into the column metadata, as JSON"
            )


def spooled(lines: Any, folder: Path) -> Path:
    """Standard input as a file, so that it can be counted and read again."""
    path = folder / "input.jsonl"
    with path.open("wb") as file:
        while chunk := lines.read(CHUNK):
            file.write(chunk)
    return path
