"""A run's settings to the chunks of text to be written, in the order of the final files."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation.cells import Cell
from slalom.evaluation.run_folder import Run, RunSettings
from slalom.evaluation.tasks import Item, Task


class Chunk(NamedTuple):
    """Texts written in one call: some prompts with the same wish, several samples each. Kept whole or not at all."""

    key: str
    cell: Cell
    items: list[Item]
    length: int
    samples: int

    def record_ids(self, seed: int) -> list[str]:
        """The ids of its texts, prompt by prompt, sample by sample."""
        return [
            f"{self.cell.id}/{item.id}/{self.length}/{seed + sample}"
            for item in self.items
            for sample in range(self.samples)
        ]

    @property
    def tokens(self) -> int:
        """Tokens in all its texts."""
        return len(self.items) * self.samples * self.length


def plan(run: Run, batch_size: int) -> list[Chunk]:
    """All chunks of a run."""
    return chunks_of(run.settings, run.tasks, batch_size)


def chunks_of(settings: RunSettings, tasks: dict[str, Task], batch_size: int) -> list[Chunk]:
    """The chunks of all cells, each with a key of its own: what is written is found again by it."""
    planned = [
        chunk for cell in settings.cells for chunk in chunks(cell, tasks[cell.task], settings.preset, batch_size)
    ]
    if twice := [key for key, times in Counter(chunk.key for chunk in planned).items() if times > 1]:
        raise SlalomError(f"{twice[0]} is planned twice; name each sampler, wish and length once")
    return planned


def chunks(cell: Cell, task: Task, preset: str, batch_size: int) -> Iterator[Chunk]:
    """A cell's texts: prompts with the same wish together, about `batch_size` texts in each chunk."""
    size = task.size(preset)
    by_wish: dict[str, list[Item]] = defaultdict(list)
    for item in task.items(size, cell.prefix):
        by_wish[json.dumps(item.parts, sort_keys=True)].append(item)
    step = max(1, batch_size // size.samples)
    for length in size.lengths:
        for items in by_wish.values():
            for start in range(0, len(items), step):
                group = items[start : start + step]
                yield Chunk(f"{cell.id}/{group[0].id}/{length}", cell, group, length, size.samples)
