"""Records to JSON-lines files that survive a kill at any moment, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slalom.errors import SlalomError

Record = dict[str, Any]


def append(path: Path, records: Iterable[Record]) -> None:
    """Whole lines at the end of a file, on the disk before this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Record]:
    """Every whole line; a torn last one, as a kill may leave it, is cut off the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        with path.open("r+b") as file:
            file.truncate(end)
    records = []
    for number, line in enumerate(content[:end].decode("utf-8").split("\n")[:-1], 1):
        try:
            records.append(json.loads(line))
        except ValueError:
            raise SlalomError(f"{path}, line {number}, is no JSON; was the file changed by hand?") from None
    return records


def rewrite(path: Path, records: Iterable[Record]) -> None:
    """The file anew, written beside its place and renamed into it."""
    write_text(path, _lines(records))


def write_text(path: Path, text: str) -> None:
    """A text file, written beside its place and renamed into it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")  # always the same: what a kill leaves is overwritten
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def write_json(path: Path, value: Any) -> None:
    """A value as indented JSON, written the same way."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """A value back, if the file is there."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SlalomError(f"{path} is no JSON ({error}); was it changed by hand?") from None


def _lines(records: Iterable[Record]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
