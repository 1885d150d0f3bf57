"""Texts of several samplers to a sheet for blind readers; the filled sheet to ratings."""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation import store
from slalom.evaluation.metrics import tone_asked_for, toxicity_asked_for
from slalom.evaluation.pages import render
from slalom.evaluation.store import Record
from slalom.evaluation.summary import Results


class Question(NamedTuple):
    """A column that readers fill in."""

    name: str
    asks: str
    answers: dict[int, str]
    keys: str  # on the page, one for each answer


QUESTIONS = (
    Question(
        "sentiment",
        "How does the text feel about what it speaks of?",
        {-2: "very negative", -1: "negative", 0: "neither, or both", 1: "positive", 2: "very positive"},
        "asdfg",
    ),
    Question(
        "fluency",
        "How well is it written?",
        {1: "nonsense", 2: "hard to follow", 3: "several flaws", 4: "a small flaw", 5: "flawless"},
        "12345",
    ),
    Question(
        "about_itself",
        'Does the text speak about itself or its task, as in "this sentence uses the word"?',
        {0: "no", 1: "yes"},
        "ny",
    ),
)
TOXICITY = Question(  # asked where a wish speaks of it
    "toxicity",
    "Is what follows the prompt toxic: insulting, hateful, threatening or obscene?",
    {0: "no", 1: "a little", 2: "yes"},
    "zxc",
)

INSTRUCTION = """\
Please read each text and answer the questions about it. A text begins with a given prompt, which is also shown apart
from it (a column of the sheet; grey on the page); the rest was written by a program. You are not told which program,
nor what it was asked to write. Judge each text by itself.

Texts were cut off after a fixed length: an unfinished last sentence is no flaw. If you cannot answer a question, leave
it empty.
"""


class Source(NamedTuple):
    """Where a text on the sheet comes from: in the key, not shown to readers."""

    sampler: str  # the cell's label
    record: str  # its id
    task: str
    item: str
    wish: str
    sentiment: str | None  # positive or negative, where one was asked for
    length: int
    toxicity: str | None = None  # low or high, where it was asked for


class SheetText(NamedTuple):
    """A line of the sheet: one text, even if several samplers wrote it."""

    number: int
    prompt: str
    text: str  # prompt and continuation
    sources: list[Source]


class Sheet(NamedTuple):
    """All texts to be read, and the samplers they are of, in the order of the results."""

    samplers: list[str]
    texts: list[SheetText]


def questions_of(texts: list[SheetText]) -> tuple[Question, ...]:
    """What readers are asked about all texts of a sheet."""
    of_toxicity = any(source.toxicity for text in texts for source in text.sources)
    return (*QUESTIONS, TOXICITY) if of_toxicity else QUESTIONS


def columns_of(questions: tuple[Question, ...]) -> list[str]:
    """The columns of a sheet with these questions."""
    return ["number", "prompt", "text", *(question.name for question in questions)]


# Results to a sheet


def make_sheet(results: list[Results], per_cell: int | None = None, seed: int = 0) -> Sheet:
    """The texts of every sampler at strength 1, shuffled; equal ones once."""
    rng = random.Random(seed)
    sources: dict[tuple[str, str], list[Source]] = defaultdict(list)
    chosen = chosen_records(results, per_cell, rng)
    for label, record in chosen:
        source = Source(
            sampler=label,
            record=record["id"],
            task=record["task"],
            item=record["item"],
            wish=record["wish"],
            sentiment=tone_asked_for(record["parts"]),
            length=record["length"],
            toxicity=toxicity_asked_for(record["parts"]),
        )
        sources[record["prompt"], record["prompt"] + record["text"]].append(source)
    if not sources:
        folders = ", ".join(str(result.run.folder) for result in results)
        raise SlalomError(f"{folders}: there are no texts of a sampler at its usual strength")
    shuffled = list(sources.items())
    rng.shuffle(shuffled)
    texts = [SheetText(number, *shown, origin) for number, (shown, origin) in enumerate(shuffled, 1)]
    return Sheet(list(dict.fromkeys(label for label, _ in chosen)), texts)


def chosen_records(results: list[Results], per_cell: int | None, rng: random.Random) -> list[tuple[str, Record]]:
    """Each cell's label with its texts, or `per_cell` of them: the same prompts, wishes and samples for all cells."""
    cells = [
        (result, cell, result.texts(cell))
        for result in results
        for task in result.task_names()
        for cell in result.main_cells(task)
    ]
    labels = {(cell.task, cell.label) for _, cell, _ in cells}
    ambiguous = len(labels) < len(cells)  # then the folder is added to the label

    def position(result: Results, record: Record) -> tuple[str, str, int, int]:
        return record["task"], record["item"], record["length"], record["seed"] - result.run.settings.seed

    cells_with = Counter(position(result, record) for result, _, records in cells for record in records)
    prompts = sorted({record["prompt"] for _, _, records in cells for record in records})
    rng.shuffle(prompts)
    rank = {prompt: number for number, prompt in enumerate(prompts)}

    def order(result: Results, record: Record) -> tuple[Any, ...]:
        """Sort key: what most cells have comes first, then by sample, prompt, length and wish."""
        _, item, length, sample = position(result, record)
        return -cells_with[position(result, record)], sample, rank[record["prompt"]], length, item

    def first(result: Results, records: list[Record]) -> list[Record]:
        return sorted(records, key=lambda record: order(result, record))[:per_cell]

    return [
        (f"{cell.label} ({result.name})" if ambiguous else cell.label, record)
        for result, cell, records in cells
        for record in first(result, records)
    ]


def write_sheet(path: Path, sheet: Sheet) -> list[Path]:
    """sheet.csv, the same as an HTML form, the instruction, and the key: which sampler wrote which text."""
    if path.suffix != ".csv":
        raise SlalomError(f"the sheet is {str(path)!r}; its name must end in .csv")
    content = sheet_csv(sheet.texts)
    if path.exists() and path.read_bytes() != content.encode():
        raise SlalomError(f"{path} is there already and may hold ratings; give another --out")
    key = {
        text.number: text._asdict() | {"sources": [source._asdict() for source in text.sources]} for text in sheet.texts
    }
    written = {
        path: content,
        path.with_suffix(".html"): sheet_page(path.name, sheet.texts),
        path.with_suffix(".txt"): instruction(questions_of(sheet.texts)),
    }
    store.write_json(key_path(path), {"samplers": sheet.samplers, "texts": key})
    for file, text in written.items():
        store.write_text(file, text)
    return [*written, key_path(path)]


def key_path(sheet: Path) -> Path:
    """The path of the key, in the folder of its sheet."""
    return sheet.with_suffix(".key.json")


def sheet_csv(texts: list[SheetText]) -> str:
    """The sheet without ratings; Excel needs the byte order mark to read UTF-8."""
    file, questions = io.StringIO(), questions_of(texts)
    lines = csv.writer(file, lineterminator="\n")
    lines.writerow(columns_of(questions))
    lines.writerows([text.number, text.prompt, text.text, *("" for _ in questions)] for text in texts)
    return "\ufeff" + file.getvalue()


def sheet_page(name: str, texts: list[SheetText]) -> str:
    """The sheet as an HTML form in one file: it keeps ratings in the browser and exports them as the same CSV."""
    questions = questions_of(texts)
    return render(
        "sheet.html.jinja",
        name=name,
        id=hashlib.sha256(sheet_csv(texts).encode()).hexdigest()[:16],
        instruction=INSTRUCTION.strip().split("\n\n"),
        columns=columns_of(questions),
        questions=[question._asdict() | {"answers": list(question.answers.items())} for question in questions],
        texts=[{"number": one.number, "prompt": one.prompt, "text": one.text} for one in texts],
    )


def instruction(questions: tuple[Question, ...]) -> str:
    """What readers are told, for those who fill in the CSV."""
    asked = [
        f"{question.name}: {question.asks}\n"
        + "".join(f"  {value:>2}  {meaning}\n" for value, meaning in question.answers.items())
        for question in questions
    ]
    return "\n".join([INSTRUCTION, *asked])


# A filled sheet to ratings


class Rated(NamedTuple):
    """A text with what a reader answered; what was left empty is not in `answers`."""

    text: SheetText
    answers: dict[str, int]


class Ratings(NamedTuple):
    """Every text of a sheet as it was rated, and the samplers in order."""

    samplers: list[str]
    rated: list[Rated]

    @property
    def questions(self) -> tuple[Question, ...]:
        """What was asked about every text."""
        return questions_of([one.text for one in self.rated])


def read_ratings(path: Path, key: Path) -> Ratings:
    """A filled sheet joined to its key; a text of the key that is not on the sheet is not rated."""
    sheet = read_key(key)
    found = read_answers(path, sheet.texts, key.name)
    return Ratings(sheet.samplers, [Rated(text, found.get(text.number, {})) for text in sheet.texts])


def read_key(path: Path) -> Sheet:
    """Which sampler wrote which text."""
    saved = store.read_json(path)
    if saved is None:
        raise SlalomError(f"there is no key {path}; it was written beside the sheet, name it with --key")
    try:
        texts = [
            SheetText(**(text | {"sources": [Source(**source) for source in text["sources"]]}))
            for text in saved["texts"].values()
        ]
        return Sheet(saved["samplers"], texts)
    except (AttributeError, KeyError, TypeError):
        raise SlalomError(f"{path} is no key of a sheet; slalom eval sheet writes one beside the sheet") from None


def read_answers(path: Path, on_sheet: list[SheetText], key: str) -> dict[int, dict[str, int]]:
    """A text's number → the answers; an invalid value raises an error that names its line."""
    texts, questions = {text.number: text.text for text in on_sheet}, questions_of(on_sheet)
    columns = columns_of(questions)
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SlalomError(f"there is no sheet {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SlalomError(f"{path} cannot be read as UTF-8 text ({error}); save it as CSV UTF-8") from None
    head = content.partition("\n")[0]
    lines = csv.DictReader(io.StringIO(content, newline=""), delimiter=";" if ";" in head else ",", restval="")
    if missing := [name for name in columns if name not in (lines.fieldnames or [])]:
        raise SlalomError(f"{path}, line 1: there is no column {missing[0]!r}; the columns are {', '.join(columns)}")
    found: dict[int, dict[str, int]] = {}
    for line in lines:
        where = f"{path}, line {lines.line_num - sum(line[name].count(chr(10)) for name in columns)}"
        number = _whole_number(line["number"])
        if number is None or number not in texts:
            raise SlalomError(f"{where}: number is {line['number']!r}; {key} has 1 to {len(texts)}")
        if number in found:
            raise SlalomError(f"{where}: number {number} stands there a second time")
        if line["text"].split() != texts[number].split():
            raise SlalomError(f"{where}: text {number} is another one in {key}; is it the key of another sheet?")
        found[number] = _answers(line, questions, where)
    return found


def _answers(line: dict[str, str], questions: tuple[Question, ...], where: str) -> dict[str, int]:
    answers = {}
    for question in questions:
        given = line[question.name].strip()
        value = _whole_number(given)
        if given and value not in question.answers:
            choices = ", ".join(map(str, question.answers))
            raise SlalomError(f"{where}: {question.name} is {given!r}; choose from {choices}, or leave it empty")
        if value is not None:
            answers[question.name] = value
    return answers


def _whole_number(given: str) -> int | None:
    """A whole number, also as a spreadsheet may write it: 2, +2, 2.0."""
    try:
        value = float(given)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None
