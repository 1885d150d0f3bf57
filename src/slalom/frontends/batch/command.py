"""The command `slalom batch`: files and options typed in a terminal to a job, its progress, and a summary."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from slalom.errors import SlalomError
from slalom.frontends.batch.rows import BatchSpec
from slalom.frontends.options import takes
from slalom.frontends.specs import LoadSpec, checked

if TYPE_CHECKING:
    from slalom.frontends.batch.job import Count, Files, Runner, Watch
    from slalom.frontends.batch.texts import Work

STREAM = Path("-")  # standard input or output
FAILED = 1  # exit status if some rows failed


@takes(BatchSpec)
def batch_rows(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Rows: .jsonl, .csv or .parquet; - for standard input.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Texts: .jsonl, .csv or .parquet; - for standard output.")],
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew instead of going on.")] = False,
    runner: Annotated[Literal["local", "ray"], typer.Option(help="This process, or actors of Ray.")] = "local",
    actors: Annotated[int, typer.Option(min=1, help="Ray: how many actors, each with an LM of its own.")] = 1,
    cpus_per_actor: Annotated[float, typer.Option(min=0, help="Ray: CPUs each actor asks for.")] = 1,
    gpus_per_actor: Annotated[float, typer.Option(min=0, help="Ray: GPUs each actor asks for.")] = 0,
    ray_address: Annotated[
        str | None, typer.Option(help="Ray: a cluster's address; a cluster on this machine if left out.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")
    ] = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Write a text for every row of a file; stopped in any way, the same command goes on where it was.

    A row is a prompt or messages with any of the options below as fields, {"prompt": "The food", "sentiment":
    "negative", "seed": 7} say, or a line of OpenAI's batches. What it leaves open, the options say. Rows that cannot be
    written are listed with line and reason in OUT.errors.jsonl, and the exit status is 1.

    Examples:

        slalom batch prompts.jsonl texts.jsonl --sentiment positive

        slalom batch prompts.csv texts.parquet --keywords soup --samples 4 --length 40

        slalom batch prompts.jsonl texts.jsonl --detoxify --runner ray --actors 4 --cpus-per-actor 8
    """
    from slalom.frontends.batch.job import run_local
    from slalom.frontends.batch.texts import Work

    fields = given or {}
    checked(BatchSpec, fields)
    model = {name: fields.pop(name) for name in LoadSpec.model_fields if name in fields}
    work = Work(model, fields)
    run: Runner = run_local
    if runner == "ray":
        from slalom.frontends.batch.on_ray import run_on_ray
        from slalom.frontends.ray_cluster import Cluster

        run = functools.partial(run_on_ray, cluster=Cluster(actors, cpus_per_actor, gpus_per_actor, ray_address))
    with tempfile.TemporaryDirectory() as folder:
        files = _files(source, out, Path(folder))
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        with _progress() as watch:
            count = _write(files, work, run, restart, watch, console)
    _report(count, out, as_json, console)


def _files(source: Path, out: Path, folder: Path) -> Files:
    """Where to read and write; standard input is kept in the folder."""
    from slalom.frontends.batch.job import Files
    from slalom.frontends.batch.reading import format_of, parquet, spooled

    out_kind = ".jsonl" if out == STREAM else format_of(out)
    if source == STREAM:
        source, kind = spooled(sys.stdin.buffer, folder), ".jsonl"
    else:
        kind = format_of(source)
        if not source.exists():
            raise SlalomError(f"there is no file {source}")
        if out.exists() and source.samefile(out):
            raise SlalomError(f"{out} is the input; give another output")
    if out_kind == ".parquet":
        parquet()  # whoever lacks it learns so before anything is written
    return Files(source, kind, out, out_kind)


def _write(files: Files, work: Work, run: Runner, restart: bool, watch: Watch, console: Console) -> Count:
    from slalom.frontends.batch.job import run_job

    if files.out == STREAM:
        return _stream(files, work, run, watch, console)
    latest: list[Count] = []

    def watching(count: Count) -> None:
        latest[:] = [count]
        watch(count)

    try:
        return run_job(files, work, run, restart, watching)
    except KeyboardInterrupt:
        done = f"{latest[0].done} of {latest[0].rows} rows are kept" if latest else "nothing was written yet"
        console.print(f"interrupted; {done}; the same command goes on from there")
        raise typer.Exit(130) from None


def _stream(files: Files, work: Work, run: Runner, watch: Watch, console: Console) -> Count:
    """Texts to standard output as soon as all before them are there; reasons of bad rows to standard error."""
    from slalom.frontends.batch.job import Count, in_order
    from slalom.frontends.batch.reading import examine, read_lines
    from slalom.frontends.batch.writing import json_line

    count = Count(examine(files.source, files.source_kind).rows)
    for one in in_order(run(read_lines(files.source, files.source_kind), work)):
        if one.error is not None:
            console.print(f"line {one.line}: {escape(one.error)}")
        for record in one.records:
            sys.stdout.write(json_line(record))
        sys.stdout.flush()
        count = count.add(one)
        watch(count)
    return count


def _report(count: Count, out: Path, as_json: bool, console: Console) -> None:
    """What came of it, and the exit status."""
    errors = f"{out}.errors.jsonl" if count.failed and out != STREAM else None
    if as_json:
        print(json.dumps(count._asdict() | {"out": str(out), "errors": errors}), file=sys.stdout)
    else:
        share = f", {count.satisfied / count.texts:.0%} satisfied" if count.texts else ""
        where = "" if out == STREAM else f" in {escape(str(out))}"
        console.print(f"{count.texts} texts of {count.done - count.failed} rows{where}{share}")
    if count.failed:
        if not as_json:
            console.print(f"{count.failed} rows failed" + (f"; {escape(errors)} says why" if errors else ""))
        raise typer.Exit(FAILED)


@contextmanager
def _progress() -> Iterator[Watch]:
    """A bar on standard error: rows, texts a second, time left, satisfied; nothing if that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("loading", total=None)
        first: list[Count] = []
        started = time.perf_counter()

        def watch(count: Count) -> None:
            nonlocal started
            if not first:
                first.append(count)
                started = time.perf_counter()
            progress.update(task, total=count.rows, completed=count.done, description=_pace(count, first[0], started))

        yield watch


def _pace(count: Count, first: Count, started: float) -> str:
    """Texts a second and time left by what this run has done, and the share of satisfied texts."""
    from slalom.evaluation.progress import time_left

    left = time_left(started, count.done - first.done, count.rows - count.done)
    if left is None:
        return "loading"
    minutes, seconds = divmod(round(left), 60)
    speed = (count.texts - first.texts) / (time.perf_counter() - started)
    satisfied = f"{count.satisfied / count.texts:.0%} satisfied" if count.texts else "no texts"
    failed = f", {count.failed} failed" if count.failed else ""
    return f"{speed:.1f} texts/s, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left, {satisfied}{failed}"
