"""An input and an output to a finished job: rows not finished yet go to a runner, what comes back is kept at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import FinishedLine, Line
from slalom.frontends.batch.reading import examine, read_lines
from slalom.frontends.batch.side_files import SideFiles, fingerprint, only_one
from slalom.frontends.batch.texts import TextWriter, Work
from slalom.frontends.batch.writing import write_output

Runner = Callable[[Iterator[Line], Work], Iterator[list[FinishedLine]]]  # rows → finished ones, in any order
Watch = Callable[["Count"], None]


class Count(NamedTuple):
    """How far a job is."""

    rows: int  # of the input
    done: int = 0  # rows finished or failed, those of earlier runs included
    failed: int = 0
    texts: int = 0
    satisfied: int = 0

    def add(self, one: FinishedLine) -> Count:
        """One more row."""
        return Count(
            self.rows,
            self.done + 1,
            self.failed + (one.error is not None),
            self.texts + one.texts,
            self.satisfied + one.satisfied,
        )


class Files(NamedTuple):
    """Where a job reads and writes, and in which formats."""

    source: Path
    source_kind: str
    out: Path
    out_kind: str


def run_local(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
    """The runner on this machine: one LM in this process."""
    return TextWriter(work).write(lines)


def run_job(files: Files, work: Work, runner: Runner, restart: bool, watch: Watch) -> Count:
    """Write every row that is not finished yet, and the output when all are. Stopped in any way, it can go on."""
    with only_one(files.out):
        source = examine(files.source, files.source_kind)
        if source.openai and files.out_kind != ".jsonl":
            raise SlalomError(f"answers to OpenAI's batch lines are JSON lines; let {files.out} end in .jsonl")
        side = SideFiles(files.out, fingerprint(source, {**work.load, **work.defaults}), restart)
        count = Count(source.rows)
        for one in side.in_order():
            count = count.add(one)
        watch(count)
        if count.done < count.rows:
            left = (line for line in read_lines(files.source, files.source_kind) if not side.has(line.number))
            for finished in runner(left, work):
                side.append(finished)
                for one in finished:
                    count = count.add(one)
                watch(count)
        if count.done < count.rows:
            raise SlalomError(
                f"{count.rows - count.done} of the {count.rows} rows that {files.source} had are not there any more; "
                "put the file back and give the command again, or begin anew with --restart"
            )
        write_output(files.out, files.out_kind, side.in_order)
        side.remove()
    return count


def in_order(finished: Iterator[list[FinishedLine]]) -> Iterator[FinishedLine]:
    """Finished rows as they come, each held back until all before it are there."""
    held: dict[int, FinishedLine] = {}
    due = 0
    for some in finished:
        held |= {one.number: one for one in some}
        while due in held:
            yield held.pop(due)
            due += 1
