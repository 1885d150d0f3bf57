"""Labelled JSON lines to training rows and batches, and tokenised lower-case text to text as people write it."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from slalom.errors import SlalomError

Label = int | tuple[float, ...]  # its number, or the shares of all


class Example(NamedTuple):
    """One labelled text."""

    text: str
    label: int
    source: str = ""
    shares: tuple[float, ...] = ()  # of every label, where a row is not all of one; the label is the largest


class Batch(NamedTuple):
    """One step's inputs, right-padded."""

    ids: torch.Tensor  # [B, m]
    mask: torch.Tensor  # [B, m]
    labels: torch.Tensor  # [B], or the shares of every label [B, classes]


def read_rows(paths: Iterable[Path], splits: tuple[str, ...], max_words: int, other: bool = False) -> list[Example]:
    """The rows of some splits (or of all others) of JSON-lines files with text, label and split; long ones left out."""
    return [
        _example(row, path.name)
        for path in paths
        for row in _read_json_lines(path, ("text", "label", "split"))
        if (row["split"] in splits) != other and len(row["text"].split()) <= max_words
    ]


def _example(row: dict[str, Any], file: str) -> Example:
    """A row whose label is a number, or a list of the shares that every label has in it."""
    label, source = row["label"], f"{file}:{row.get('source', '')}"
    if isinstance(label, list):
        return Example(row["text"], label.index(max(label)), source, tuple(label))
    return Example(row["text"], int(label), source)


def balanced(rows: list[Example], rng: random.Random) -> list[Example]:
    """As many rows of every label within each source, so that a source's manner does not give the label away.

    Sources of one label only are taken together, file by file.
    """
    labels: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        labels[row.source].add(row.label)
    groups: dict[str, dict[int, list[Example]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = row.source if len(labels[row.source]) > 1 else row.source.split(":")[0]
        groups[name][row.label].append(row)
    kept = []
    for group in groups.values():
        least = min(map(len, group.values()))
        kept += [row for own in group.values() for row in rng.sample(own, least)]
    return kept


def _read_json_lines(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                row = json.loads(line)
                if not isinstance(row, dict) or not all(field in row for field in needed):
                    raise SlalomError(f"{path}, line {number}: expected a JSON object with {', '.join(needed)}")
                yield row
    except FileNotFoundError:
        raise SlalomError(f"there is no file {path}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SlalomError(f"{path} cannot be read as JSON lines ({error})") from error


def naturalise(text: str, rng: random.Random) -> str:
    """Undo the tokenisation of a lower-cased corpus: joined clitics and punctuation, capitals, real numbers."""
    text = text.replace("-lrb-", "(").replace("-rrb-", ")")
    text = re.sub(r"_num_", lambda _: str(rng.choice((2, 5, 10, 30, 45, 100, 2010))), text)
    text = re.sub(r" (n't|'(?:s|m|re|ve|ll|d))\b", r"\1", text)
    text = re.sub(r"\b(can|gon|wan|got) (not|na|ta)\b", r"\1\2", text)
    text = re.sub(r" ([,.!?;:%)])", r"\1", text)
    text = re.sub(r"([($]) ", r"\1", text)
    text = re.sub(r"(``|'') ?", '"', text)
    text = re.sub(r"\bi\b(?!\.)", "I", text)
    text = re.sub(r"([.!?] +)([a-z])", lambda m: m[1] + m[2].upper(), text).strip()
    return text[:1].upper() + text[1:]


def augment(rows: list[Example], rng: random.Random) -> list[Example]:
    """Every row once: half as it is, half as people write it."""
    return [row._replace(text=naturalise(row.text, rng)) if rng.random() < 0.5 else row for row in rows]


def batches(encoded: list[list[int]], labels: Sequence[Label], size: int, rng: random.Random) -> Iterator[Batch]:
    """Shuffled batches of token lists of like length, so that little is padding."""
    order = list(range(len(encoded)))
    rng.shuffle(order)
    window = 50 * size
    groups = []
    for start in range(0, len(order), window):
        near = sorted(order[start : start + window], key=lambda row: len(encoded[row]))
        groups += [near[i : i + size] for i in range(0, len(near), size)]
    rng.shuffle(groups)
    for group in groups:
        yield collate([encoded[row] for row in group], [labels[row] for row in group])


def collate(encoded: list[list[int]], labels: Sequence[Label]) -> Batch:
    """Lists of token ids to one right-padded batch."""
    longest = max(1, *map(len, encoded))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in encoded])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in encoded])
    return Batch(ids, mask, torch.tensor(labels))


@contextmanager
def written_beside(out: Path) -> Iterator[Path]:
    """A folder to fill, beside its place, and renamed into it at the end: there is never half of one."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield beside
        beside.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
