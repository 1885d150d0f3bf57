"""The command `slalom`: words typed in a terminal to the layers below, and their answers to text, tables or JSON."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

from slalom.backbone.importing import without_collection
from slalom.backbone.names import DEFAULT
from slalom.errors import SlalomError
from slalom.frontends.batch.command import batch_rows
from slalom.frontends.eval_commands import (
    evaluate_samplers,
    read_rating_sheet,
    report_runs,
    run_evaluation_queue,
    write_rating_sheet,
)
from slalom.frontends.options import takes
from slalom.frontends.serve_command import serve
from slalom.frontends.specs import GenerateSpec, make_spec

if TYPE_CHECKING:
    from slalom.api import Steered, Text
    from slalom.decoding.scheduler import Callback, RowReport

P = ParamSpec("P")
SHOWN = 32  # texts written before they are shown


class TwoWordCommands(TyperGroup):
    """Looks up commands of two words first: `eval sheet` is a command, while `eval` alone takes tasks as arguments."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        return super().resolve_command(ctx, [two, *args[2:]] if two in self.commands else args)


app = typer.Typer(
    cls=TwoWordCommands,
    help="Steer a language model while it decodes: name what the text must be like, get fluent text that is.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
train_app = typer.Typer(help="Train what constraints and samplers load.", no_args_is_help=True)
app.add_typer(train_app, name="train")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"slalom {importlib.metadata.version('slalom')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that stand before any command."""


def main() -> None:
    """The entry point of the `slalom` command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)


def report_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Errors to exit codes: bad input prints one line and exits with 2, Ctrl-C with 130, a closed pipe with 0."""

    @functools.wraps(command)
    def reporting(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except SlalomError as error:
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"[red]slalom:[/red] {escape(str(error))}")
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            Console(stderr=True).print("interrupted")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            sys.stderr.close()
            raise typer.Exit(0) from None

    return reporting


# slalom generate


@app.command()
@report_errors
@takes(GenerateSpec, without=("prompts",))
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="One or more texts to continue.")] = None,
    prompts_file: Annotated[Path | None, typer.Option(help="One prompt a line; - for standard input.")] = None,
    spec: Annotated[Path | None, typer.Option(help="A TOML file with any of these settings.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Show the unsteered text beside the steered one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, and nothing else.")] = False,
    given: dict[str, Any] | None = None,
) -> None:
    """Continue prompts so that the text is what you ask for.

    Examples:

        slalom generate "The chicken" --sentiment positive --compare

        slalom generate "The river" --keywords kayak,sunrise --all --samples 4 --json

        slalom generate "Dear team," --classifier ./my-tone-model --label friendly --strength 1.2

        slalom generate "The crew" --topic space --avoid moon,stars --whole-sentences

        slalom generate --chat "Describe my cafe" --sentiment positive

        slalom generate --prompts-file prompts.txt --sentiment negative --until 0.95
    """
    typed = _prompts(prompts or [], prompts_file)
    wanted = make_spec((given or {}) | ({"prompts": typed} if typed else {}), spec)

    with without_collection():
        from slalom.api import load

    with _status("loading"):
        lm = load(wanted.model or DEFAULT, device=wanted.device, dtype=wanted.dtype, engine=wanted.engine)
        wish = wanted.constraint()
    per_call = max(1, SHOWN // wanted.samples)
    for start in range(0, len(wanted.prompts), per_call):
        some = wanted.prompts[start : start + per_call]
        with _progress(
            f"{start + 1}-{start + len(some)} of {len(wanted.prompts)}", len(some) * wanted.samples
        ) as callback:
            out = lm.steer(some, wish, compare=compare, callbacks=(callback,), **wanted.options())
        if as_json:
            for record in out.records(compare):
                print(json.dumps(record, ensure_ascii=False), flush=True)
        else:
            _show(out, compare, wanted.chat)


def _prompts(given: list[str], file: Path | None) -> list[str]:
    """Prompts from the arguments, a file, or standard input if something is piped in."""
    if file is None and (given or sys.stdin.isatty()):
        return given
    try:
        text = sys.stdin.read() if file is None or str(file) == "-" else file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SlalomError(f"there is no file {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SlalomError(f"{file} cannot be read as text ({error})") from None
    return given + [line for line in text.splitlines() if line.strip()]


def _show(out: Steered, compare: bool, chat: bool) -> None:
    console = Console(highlight=False)
    for row in out.rows:
        if compare:
            console.print(_side_by_side(row, chat))
        else:
            console.print(_prompt(row, chat) + escape(row.text), soft_wrap=True)
        engine = "" if out.engine == "torch" else f" · {out.engine}"
        console.print(f"[dim]{escape(_summary(row))}{engine}[/dim]\n", soft_wrap=True)


def _prompt(row: Text, chat: bool) -> str:
    return f"[dim]{escape(row.prompt)}[/dim]" + ("\n" if chat else "")


def _side_by_side(row: Text, chat: bool) -> Table:
    table = Table(expand=True)
    steered = "told and steered" if row.told else "steered"
    table.add_column(f"unsteered · perplexity {row.unsteered_perplexity:.1f}", ratio=1)
    table.add_column(f"{steered} · perplexity {row.perplexity:.1f}", ratio=1)
    table.add_row(*(_prompt(row, chat) + escape(text or "") for text in (row.unsteered, row.text)))
    return table


def _summary(row: Text) -> str:
    wishes = [
        f"{wish.name} {'yes' if wish.satisfied else 'no'}"
        + ("" if wish.probability is None else f" ({wish.probability:.3f})")
        for wish in row.constraints
    ]
    return " · ".join(
        [
            *wishes,
            *(["told"] if row.told else []),
            f"perplexity {row.perplexity:.1f}",
            f"{row.steps} draft{'' if row.steps == 1 else 's'}",
            f"seed {row.seed}",
        ]
    )


@contextmanager
def _status(what: str) -> Iterator[None]:
    with Console(stderr=True).status(what):
        yield


@contextmanager
def _progress(which: str, count: int) -> Iterator[Callback]:
    """A live line on standard error: how many texts are satisfied, and drafts; silent when that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"steering {which}", total=count)
        latest: dict[int, RowReport] = {}

        def report(rows: list[RowReport]) -> None:
            latest.update((row.ticket, row) for row in rows)
            drafts, satisfied = (
                sum(row.drafts for row in latest.values()),
                sum(row.best.verdict.satisfied for row in latest.values()),
            )
            progress.update(task, completed=satisfied, description=f"steering {which}: {drafts} drafts, satisfied")

        yield report


# slalom train


@train_app.command("classifier")
@report_errors
def train_classifier(
    data: Annotated[list[Path], typer.Argument(help="JSON lines (.jsonl, .jsonl.gz) with text, label and split.")],
    out: Annotated[Path, typer.Option(help="The folder to write; --classifier reads it.")],
    labels: Annotated[str, typer.Option(help="The labels' names in order, comma-separated.")] = "negative,positive",
    body: Annotated[str, typer.Option(help="The encoder to adapt.")] = "minilm-l6",
    lm: Annotated[
        str | None, typer.Option(help="Read this LM's embedding table, the paper's construction, not the body's own.")
    ] = None,
    start: Annotated[Path | None, typer.Option(help="An adapter to go on from.")] = None,
    split: Annotated[str, typer.Option(help="The split to train on; measured is on all others.")] = "train",
    rows: Annotated[int | None, typer.Option(min=1, help="Draw at most so many rows.")] = None,
    layers: Annotated[
        int | None, typer.Option(min=1, help="Adapt the last so many layers only, which is faster; all if left out.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapter.")] = 32,
    dropout: Annotated[float, typer.Option(min=0, max=0.9, help="Dropout while training, against overfitting.")] = 0.0,
    epochs: Annotated[float, typer.Option(help="Passes over the training rows.")] = 2.0,
    batch: Annotated[int, typer.Option(min=1, help="Rows of one step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 6e-4,
    max_words: Annotated[int, typer.Option(help="Leave longer texts out.")] = 60,
    balance: Annotated[
        bool, typer.Option("--balance", help="As many rows of every label within each source of the data.")
    ] = False,
    held_out: Annotated[int, typer.Option(min=1, help="Measure on at most so many rows of each file.")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of order and augmentation.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON, and nothing else.")] = False,
) -> None:
    """Train a classifier that a constraint can follow: a small adapter, and a card of what it measures.

    Examples:

        slalom train classifier reviews.jsonl.gz --out my-sentiment

        slalom train classifier tone.jsonl --labels neutral,friendly --balance --out my-tone
    """
    from slalom.training.classifier import ClassifierRecipe, train_classifier

    names = tuple(name.strip() for name in labels.split(",") if name.strip())
    recipe = ClassifierRecipe(
        names,
        body,
        lm,
        start,
        split,
        rows,
        layers,
        epochs,
        batch,
        learning_rate,
        rank=rank,
        dropout=dropout,
        max_words=max_words,
        balance=balance,
        held_out=held_out,
        seed=seed,
    )
    command = _command_line({*data, out})
    console = Console(stderr=True, highlight=False)
    card = train_classifier(data, out, recipe, command, say=lambda line: console.print(line, soft_wrap=True))
    if as_json:
        print(json.dumps(card))
    else:
        for name, share in card["accuracy"].items():
            print(f"{share:.3f}  {name}")


@train_app.command("steer")
@report_errors
def train_steer(
    data: Annotated[list[Path], typer.Argument(help="JSON lines (.jsonl, .jsonl.gz) with text, label and split.")],
    out: Annotated[Path, typer.Option(help="The folder to write; --sampler lm-steer --knob steer=FOLDER reads it.")],
    labels: Annotated[
        str, typer.Option(help="The labels' names in order, comma-separated: the first is -1, the last +1.")
    ] = "negative,positive",
    lm: Annotated[str, typer.Option(help="The LM to steer: an embedded one, a folder or a hub name.")] = DEFAULT,
    rank: Annotated[int, typer.Option(help="Columns of each of the two thin matrices.")] = 64,
    epsilon: Annotated[float, typer.Option(help="The unit of their product.")] = 1e-3,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 1000,
    batch: Annotated[int, typer.Option(help="Texts a step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-2,
    reg: Annotated[float, typer.Option(help="Weight of the matrices' squared norm in the loss.")] = 1e-6,
    max_words: Annotated[int, typer.Option(help="Leave longer texts out.")] = 60,
    max_tokens: Annotated[int, typer.Option(help="Cut texts after so many of the LM's tokens.")] = 64,
    balance: Annotated[
        bool, typer.Option("--balance", help="As many rows of every label within each source of the data.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the matrices' start and the order.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as JSON, and nothing else.")] = False,
) -> None:
    """Train LM-Steer's matrices for a language model: a small file, and a card of what it measures.

    Examples:

        slalom train steer reviews.jsonl.gz --out my-sentiment

        slalom train steer tone.jsonl --labels neutral,friendly --lm gpt2 --balance --out my-tone

        slalom generate "Dear team," --sampler lm-steer --knob steer=my-tone --classifier my-tone-model --label friendly
    """
    from slalom.training.steer import SteerRecipe, train_steer

    names = tuple(name.strip() for name in labels.split(",") if name.strip())
    recipe = SteerRecipe(
        names, lm, rank, epsilon, steps, batch, learning_rate, reg, max_words, max_tokens, balance, seed
    )
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("training", total=steps)

        def watch(step: int, loss: float) -> None:
            progress.update(task, completed=step, description=f"training: loss {loss:.3f}")

        command = _command_line({*data, out})
        card = train_steer(data, out, recipe, command, lambda line: console.print(line, soft_wrap=True), watch)
    if as_json:
        print(json.dumps(card))
        return
    for texts, losses in card["next_token_loss"].items():
        print(f"{texts}: " + ", ".join(f"{loss:.3f} {how}" for how, loss in losses.items()))


def _command_line(paths: set[Path]) -> str:
    """The command line as typed, with the folders of `paths` removed, for the card of what was trained."""
    named = {str(path) for path in paths}
    return " ".join(["slalom", *(Path(word).name if word in named else word for word in sys.argv[1:])])


# slalom batch

app.command("batch")(report_errors(batch_rows))


# slalom eval, eval sheet, eval read, report

app.command("eval")(report_errors(evaluate_samplers))
app.command("eval queue")(report_errors(run_evaluation_queue))
app.command("eval sheet")(report_errors(write_rating_sheet))
app.command("eval read")(report_errors(read_rating_sheet))
app.command("report")(report_errors(report_runs))


# slalom serve

app.command("serve")(report_errors(serve))


# slalom bench, calibrate, ls, doctor


@app.command()
@report_errors
def bench(
    model: Annotated[str, typer.Option(help="An embedded model, a folder or a hub name.")] = DEFAULT,
    engines: Annotated[str | None, typer.Option(help="Which to compare; all that are installed if left out.")] = None,
    batches: Annotated[
        str | None, typer.Option(help="Batch sizes, comma-separated: 1,20 if left out, 1,4 with --quick.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measured turns of each contender.")] = 5,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts that satisfied texts are written for.")] = 30,
    peers: Annotated[
        int, typer.Option(min=0, help="How many of them BOLT gets, but a whole batch at least; 0 for none.")
    ] = 3,
    start: Annotated[bool, typer.Option("--start", help="Only the time from the command to its first draft.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="One turn, one prompt, no scaling: to see that it runs.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for bench.json and bench.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Measure how fast this machine steers: steps, satisfied texts, memory and start against plain generation.

    Examples:

        slalom bench

        slalom bench --batches 1,8,20 --out docs/results/bench

        slalom bench --start
    """
    from slalom.backbone.engines import installed, known_engine
    from slalom.evaluation.bench import BenchSettings, measure
    from slalom.evaluation.bench_plot import draw_bench
    from slalom.evaluation.bench_start import time_start

    named = [known_engine(name.strip()) for name in engines.split(",")] if engines else installed()
    chosen = tuple(dict.fromkeys(["torch", *(name for name in named if name != "auto")]))
    sizes = _numbers("batches", batches or ("1,4" if quick else "1,20"))
    settings = BenchSettings(
        model, chosen, sizes, 1 if quick else repeats, 1 if quick else prompts, 0 if quick else peers, quick
    )
    console = Console(stderr=True, highlight=False)
    with console.status("loading") as status:

        def say(now: str) -> None:
            status.update(f"measuring: {now}")
            if not console.is_terminal:
                console.print(f"measuring: {now}")

        def keep(found: dict[str, Any]) -> None:
            """Whoever stops it half-way has what was measured so far."""
            if out is not None:
                out.mkdir(parents=True, exist_ok=True)
                (out / "bench.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

        found = {"start": time_start(model, "auto", settings.repeats)} if start else measure(settings, say, keep)
    if out is not None and not start:
        keep(found)
        try:
            draw_bench(found, out / "bench.png")
        except ImportError:
            console.print("no picture: pip install 'slalom[eval]' brings matplotlib")
    if as_json:
        print(json.dumps(found))
    else:
        _show_tree(found)


def _numbers(name: str, given: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in given.split(","))
    except ValueError:
        raise SlalomError(f"{name} is {given!r}; it must be whole numbers, comma-separated") from None
    if min(numbers) < 1:
        raise SlalomError(f"{name} is {given!r}; each must be at least 1")
    return numbers


def _show_tree(found: dict[str, Any]) -> None:
    """Nested figures, indented."""
    console = Console(highlight=False)

    def show(values: dict[str, Any], depth: int) -> None:
        for name, value in values.items():
            label = f"{'  ' * depth}{name.replace('_', ' ')}"
            console.print(f"{label:<36}" + ("" if isinstance(value, dict) else str(value)), soft_wrap=True)
            if isinstance(value, dict):
                show(value, depth + 1)

    show(found, 0)


@app.command()
@report_errors
def calibrate(
    model: Annotated[str, typer.Argument(help="An embedded model, a folder or a hub name.")],
    prompts: Annotated[int, typer.Option(help="How many prompts to try each weight on.")] = 6,
    most: Annotated[float, typer.Option(help="How much perplexity may grow, as a factor.")] = 1.7,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """Find the bias weight for a language model, and remember it for later runs.

    Example:

        slalom calibrate gpt2
    """
    from slalom.api import load
    from slalom.constraints import Sentiment
    from slalom.decoding.calibration import calibrate, remember

    with _status(f"loading {model}"):
        lm = load(model)
        constraint = Sentiment("positive")
    console = Console(stderr=True, highlight=False)
    found = calibrate(lm, constraint, prompts, most, say=lambda line: console.print(line))
    path = remember(model, found)
    if as_json:
        print(json.dumps(found._asdict() | {"tried": [row._asdict() for row in found.tried]}))
    else:
        print(f"weight {found.weight:g} for {model}, written to {path}")


@app.command("ls")
@report_errors
def ls(
    what: Annotated[
        str | None, typer.Argument(help="models, constraints, samplers, presets or tasks; all if left out")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False,
) -> None:
    """List what there is: models, constraints, samplers with their knobs, presets, tasks.

    Example:

        slalom ls samplers
    """
    from slalom.frontends.listing import LISTS

    if what is not None and what not in LISTS:
        raise SlalomError(f"there is no list of {what!r}; choose from {', '.join(LISTS)}")
    chosen = {name: make() for name, make in LISTS.items() if what in (None, name)}
    if as_json:
        print(json.dumps(chosen))
        return
    console = Console(highlight=False)
    for name, rows in chosen.items():
        table = Table(title=name, title_justify="left", show_edge=False)
        for column in rows[0]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(escape(str(cell)) for cell in row.values()))
        console.print(table, "")


@app.command()
@report_errors
def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON object, and nothing else.")] = False) -> None:
    """Say what this machine offers and whether everything needed is there.

    Example:

        slalom doctor
    """
    from slalom.frontends.listing import examine

    findings = examine()
    if as_json:
        print(json.dumps(findings))
        return
    models = findings.pop("models")
    console = Console(highlight=False)
    for name, finding in findings.items():
        console.print(f"[bold]{name:<14}[/bold] {escape(str(finding))}", soft_wrap=True)
    for number, (name, state) in enumerate(models.items()):
        console.print(f"[bold]{'' if number else 'models':<14}[/bold] {escape(f'{name}: {state}')}", soft_wrap=True)


if __name__ == "__main__":
    main()
