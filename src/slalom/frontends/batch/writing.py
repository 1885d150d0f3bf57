"""Finished rows in order to the output file, in the format its name says: complete, or not there at all."""

from __future__ import annotations

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slalom.frontends.batch.lines import FinishedLine, Record
from slalom.frontends.batch.reading import ROWS, parquet
from slalom.frontends.batch.side_files import beside

COLUMNS = {  # of a table, each with its Arrow type
    "line": "int64",
    "id": "string",
    "prompt": "string",
    "text": "string",
    "satisfied": "bool",
    "score": "float64",
    "constraints": "string",  # JSON
    "perplexity": "float64",
    "told_perplexity": "float64",
    "steps": "int64",
    "seed": "int64",
    "told": "string",
    "sampler": "string",
    "model": "string",
    "engine": "string",
    "metadata": "string",  # JSON
}
AS_JSON = ("constraints", "metadata")


def write_output(out: Path, kind: str, finished: Callable[[], Iterable[FinishedLine]]) -> None:
    """Write the texts of all rows, and those that failed to OUT.errors.jsonl, if there are any."""
    writers = {".jsonl": _write_json, ".csv": _write_csv, ".parquet": _write_parquet}
    texts = (record for one in finished() for record in one.records)
    _at_once(out, lambda path: writers[kind](path, texts))
    failures = (one.failure for one in finished() if one.error is not None)
    errors = beside(out, ".errors.jsonl")
    first = next(failures, None)
    if first is None:
        errors.unlink(missing_ok=True)
    else:
        _at_once(errors, lambda path: _write_json(path, itertools.chain([first], failures)))


def json_line(record: Record) -> str:
    """One record as a line."""
    return json.dumps(record, ensure_ascii=False) + "\n"


def _at_once(path: Path, write: Callable[[Path], None]) -> None:
    """A file that is on the disk under its name when this returns: what it was made of may go then."""
    temporary = path.with_name(f".{path.name}.unfinished")
    write(temporary)
    _to_disk(temporary)
    os.replace(temporary, path)
    _to_disk(path.parent)


def _to_disk(path: Path) -> None:
    """Have the system write out all it holds in memory of a file or folder."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _write_json(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(map(json_line, records))


def _write_csv(path: Path, records: Iterable[Record]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(COLUMNS), lineterminator="\n")
        table.writeheader()
        table.writerows(map(_flat, records))


def _write_parquet(path: Path, records: Iterable[Record]) -> None:
    import pyarrow

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    with parquet().ParquetWriter(path, schema) as file:
        for some in _chunks(map(_flat, records), ROWS):
            file.write_table(pyarrow.Table.from_pylist(some, schema=schema))


def _flat(record: Record) -> Record:
    """A record as the cells of a table."""
    flat: dict[str, Any] = {name: record.get(name) for name in COLUMNS}
    flat |= {name: json.dumps(record[name], ensure_ascii=False) for name in AS_JSON if name in record}
    return flat | ({} if flat["id"] is None else {"id": str(flat["id"])})


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    source = iter(records)
    while some := list(itertools.islice(source, size)):
        yield some
