"""The commands `slalom eval`, `eval queue`, `eval sheet`, `eval read`, `report`: words typed to runs and reports."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar

from slalom.errors import SlalomError
from slalom.frontends.options import knobs

if TYPE_CHECKING:
    from slalom.evaluation.progress import OnProgress, Progress
    from slalom.evaluation.queue import Left

ANEW = "Write texts of other prompts or settings than today's once more, instead of refusing."


def evaluate_samplers(
    tasks: Annotated[
        list[str],
        typer.Argument(
            help="sentiment, detox, keywords, commongen, compose, everyday, everyday-words, everyday-several, or a "
            "task file of yours, my-task.toml; or one study: ablation, exploration, efficiency, prompted."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, or to go on with.")],
    samplers: Annotated[
        str, typer.Option(help="Comma-separated; dab:paper is dab with its preset paper; all for all (default climb).")
    ] = "",
    preset: Annotated[str, typer.Option(help="quick (minutes), standard (an hour or two), paper.")] = "quick",
    strengths: Annotated[
        str, typer.Option(help="Factors on each sampler's strength, for the front: 0.5,1,2 say.")
    ] = "1",
    knob: Annotated[
        list[str] | None, typer.Option(help="A knob of every sampler, looks=64 say; see slalom ls samplers.")
    ] = None,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Let the model read the paper's prefix before the prompt (keywords).")
    ] = False,
    judges: Annotated[str, typer.Option(help="ours, or paper: those of a model hub.")] = "ours",
    both: Annotated[
        bool, typer.Option("--both", help="Judge prompt and continuation, and the continuation alone as well.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="An embedded model, a folder or a hub name.")] = None,
    engine: Annotated[str, typer.Option(help="auto, torch or openvino: what runs the model.")] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of a prompt's first sample.")] = 0,
    anew: Annotated[bool, typer.Option("--anew", help=ANEW)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Measure samplers on tasks by independent judges: texts, scores, report.md and report.html in one folder.

    Stopped in any way, the same command goes on where it was.

    Examples:

        slalom eval sentiment --samplers climb,dab,bolt --out results/sentiment

        slalom eval sentiment detox keywords --samplers all --preset standard --strengths 0.5,1,2 --out results/all

        slalom eval ablation --preset standard --out results/ablation

    Let people judge the texts too, without knowing whose they are: slalom eval sheet --help, slalom eval read --help.
    """
    from slalom.evaluation.judges import judge_set
    from slalom.evaluation.run_evaluation import run_evaluation
    from slalom.evaluation.typed import TypedRun, checked

    typed = TypedRun(
        tasks=tasks,
        samplers=samplers,
        preset=preset,
        strengths=strengths,
        knobs=knobs(knob or []),
        prefix=prefix,
        judges=judges,
        both=both,
        model=model,
        engine=engine,
        seed=seed,
    )
    settings, loaded = checked(typed)
    loaders = judge_set(judges)

    def load_lm():  # type: ignore[no-untyped-def]
        from slalom.api import load

        return load(settings.model, engine=settings.engine)  # type: ignore[arg-type]

    with _progress_bar() as on_progress:
        found = run_evaluation(out, settings, loaded, load_lm, loaders, on_progress, anew)
    if as_json:
        print(json.dumps(found))
    else:
        print(f"{out / 'report.md'}\n{out / 'report.html'}")


def run_evaluation_queue(
    file: Annotated[Path, typer.Argument(help="A TOML file with a list of runs, each as slalom eval takes it.")],
    only: Annotated[str, typer.Option(help="Only these runs, by name, comma-separated.")] = "",
    status: Annotated[bool, typer.Option("--status", help="Only say how far every run is.")] = False,
    anew: Annotated[bool, typer.Option("--anew", help=ANEW)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Do a list of evaluations one after the other, with low priority; the results stay in their folders.

    Stopped in any way, the same command goes on where it was. A run that fails is named, and the next one begins.

    Examples:

        slalom eval queue docs/results/studies.toml

        slalom eval queue docs/results/studies.toml --status

        slalom eval queue docs/results/studies.toml --only everyday,lengths
    """
    from slalom.evaluation.judges import judge_set
    from slalom.evaluation.queue import hours_left, left, read_queue, run_queue

    entries = read_queue(file)
    if only:
        names, known = [name.strip() for name in only.split(",")], [entry.name for entry in entries]
        for name in names:
            if name not in known:
                raise SlalomError(f"{file} has no run {name!r}; choose from {', '.join(known)}")
        entries = [entry for entry in entries if entry.name in names]
    failed: dict[str, str] = {}
    if not status:
        from slalom.api import load

        if hasattr(os, "nice"):
            os.nice(10)
        console = Console(stderr=True, highlight=False)
        with _progress_bar() as on_progress:
            failed = run_queue(
                entries, lambda model, engine: load(model, engine=engine), judge_set, on_progress, console.print, anew
            )
    state = left(entries)
    if as_json:
        print(json.dumps({"runs": [one._asdict() for one in state], "failed": failed}))
    else:
        for one in state:
            print(_in_words(one))
        print(hours_left(state))
    if failed:
        raise SlalomError(f"{len(failed)} of {len(entries)} runs failed: {', '.join(failed)}")


def _in_words(one: Left) -> str:
    """How far a run of a queue is, in one line."""
    parts = [f"{one.name}: {one.done:,} of {one.total:,}"]
    if one.judged is not None and one.judged < one.done:
        parts.append(f"{one.judged:,} judged")
    if one.skipped:
        parts.append(f"cells skipped: {one.skipped}")
    if one.seconds:
        parts.append(f"about {_duration(one.seconds)} left")
    elif one.done < one.total:
        parts.append("time unknown")
    if one.begun_with:
        parts.append(f"its folder was begun with {one.begun_with}: give the run another name")
    return ", ".join(parts)


def report_runs(
    folders: Annotated[list[Path], typer.Argument(help="Folders made by slalom eval.")],
    out: Annotated[
        Path | None, typer.Option(help="A folder for report.md and report.html; on the screen if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Report one evaluation again, or compare several.

    Example:

        slalom report results/today results/yesterday --out results/compared
    """
    from slalom.evaluation import report
    from slalom.evaluation.document import markdown
    from slalom.evaluation.run_evaluation import read_several
    from slalom.evaluation.summary import results_json

    results = read_several(folders)
    blocks = report.blocks_of(results)
    if out is not None:
        report.write(out, report.title_of(results), blocks)
    if as_json:
        print(json.dumps({"runs": [results_json(one) for one in results]}))
    elif out is None:
        print(markdown(blocks), end="")
    else:
        print(f"{out / 'report.md'}\n{out / 'report.html'}")


def write_rating_sheet(
    folders: Annotated[list[Path], typer.Argument(help="Folders made by slalom eval.")],
    out: Annotated[Path, typer.Option(help="The sheet to write, sheet.csv say; the other files stand beside it.")],
    per_cell: Annotated[
        int | None, typer.Option(min=1, help="So many texts of each sampler and task, of the same prompts; else all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order and of the choice.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Write texts of all samplers without their names, shuffled, for people to rate.

    Give readers sheet.html to click through, or sheet.csv with sheet.txt, which says what to do. Keep sheet.key.json
    to yourself: it knows whose each text is.

    Examples:

        slalom eval sheet results/sentiment --out sheet.csv

        slalom eval sheet results/sentiment results/held-out --per-cell 30 --out reading/sheet.csv

        slalom eval read sheet.csv
    """
    from slalom.evaluation.run_evaluation import read_several
    from slalom.evaluation.sheet import make_sheet, write_sheet

    made = make_sheet(read_several(folders), per_cell, seed)
    files = [str(path) for path in write_sheet(out, made)]
    if as_json:
        print(json.dumps({"texts": len(made.texts), "samplers": made.samplers, "files": files}))
    else:
        print("\n".join(files))


def read_rating_sheet(
    filled: Annotated[Path, typer.Argument(help="A sheet made by slalom eval sheet, filled in.", metavar="SHEET")],
    key: Annotated[Path | None, typer.Option(help="Its key, if that is not beside it: sheet.key.json.")] = None,
    against: Annotated[
        str | None, typer.Option(help="The sampler that all others are compared with; the first if left out.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for ratings.md and ratings.html; on the screen if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Join a filled sheet to the samplers: as wished, fluent, about itself, with intervals and paired differences.

    Ratings left empty are counted as missing, never as 0.

    Examples:

        slalom eval read sheet.csv

        slalom eval read from-anna.csv --key sheet.key.json --against bolt --out results/anna
    """
    from slalom.evaluation.document import markdown
    from slalom.evaluation.ratings import ratings_blocks, ratings_json, summarize, write_ratings
    from slalom.evaluation.sheet import key_path, read_ratings

    summary = summarize(read_ratings(filled, key or key_path(filled)), against)
    blocks = ratings_blocks(summary)
    files = [] if out is None else write_ratings(out, blocks)
    if as_json:
        print(json.dumps(ratings_json(summary)))
    elif out is None:
        print(markdown(blocks), end="")
    else:
        print("\n".join(map(str, files)))


@contextmanager
def _progress_bar() -> Iterator[OnProgress]:
    """A bar with the time left on a terminal; elsewhere a line for every stage that begins."""
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("")
        started, last_stage = time.monotonic(), ""

        def on_progress(now: Progress) -> None:
            nonlocal last_stage
            left = "" if now.seconds_left is None else f", about {_duration(now.seconds_left)} left"
            bar.update(task, description=now.stage + left, completed=now.done, total=now.total)
            if not console.is_terminal and now.stage != last_stage:
                console.print(f"{time.monotonic() - started:6.0f} s  {now.stage}, {now.done} of {now.total}{left}")
            last_stage = now.stage

        yield on_progress


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
