"""Records to JSON-lines files that stay readable if the process is killed, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slalom.errors import SlalomError

Record = dict[str, Any]


def append(path: Path, records: Iterable[Record]) -> None:
    """Add complete lines to a file, on the disk before this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(_lines(records))
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Record]:
    """Every complete line; an incomplete last one, as a kill may leave it, is cut off the file."""
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
    """Replace the file in one step."""
    write_text(path, _lines(records))


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step: written to a temporary file, which is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.partial")  # always the same name: a leftover is overwritten
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file in one step."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """A JSON file's value; none if there is no file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise SlalomError(f"{path} is no JSON ({error}); was it changed by hand?") from None


def _lines(records: Iterable[Record]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
