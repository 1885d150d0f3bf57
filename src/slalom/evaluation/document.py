"""A document of headings, tables, figures and texts to Markdown and to one self-contained HTML page."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from slalom.evaluation.pages import render

Mark = Literal["", "best", "second"]


class Entry(NamedTuple):
    """One entry of a table."""

    text: str
    mark: Mark = ""
    note: str = ""  # in small type below


class Heading(NamedTuple):
    """A heading of level 1 to 3."""

    text: str
    level: int = 2


class Paragraph(NamedTuple):
    """Some sentences."""

    text: str


class Bullets(NamedTuple):
    """A list."""

    items: list[str]


class Table(NamedTuple):
    """A table; the first column names its rows."""

    columns: list[str]
    rows: list[list[Entry]]
    caption: str = ""
    words: bool = False  # entries are words, not numbers


class Figure(NamedTuple):
    """A plot."""

    name: str  # its file's name without .svg
    svg: str
    caption: str


class ExampleTexts(NamedTuple):
    """A prompt and the continuations of several samplers."""

    title: str
    prompt: str
    texts: list[tuple[str, str]]  # a sampler, and its continuation


class Command(NamedTuple):
    """A command line."""

    text: str


Block = Heading | Paragraph | Bullets | Table | Figure | ExampleTexts | Command


def markdown(blocks: list[Block]) -> str:
    """The document; its figures are files in `figures/`."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return _escaped(text)
        case Bullets(items):
            return "\n".join(f"- {_escaped(item)}" for item in items)
        case Table(columns, rows, caption, _):
            head = f"*{_escaped(caption)}*\n\n" if caption else ""
            table = [columns, ["---"] * len(columns)] + [[_markdown_entry(entry) for entry in row] for row in rows]
            return head + "\n".join(f"| {' | '.join(line)} |" for line in table)
        case Figure(name, _, caption):
            return f"![{_escaped(caption)}](figures/{name}.svg)"
        case ExampleTexts(title, prompt, texts):
            lines = [f"- {_escaped(sampler)}: *{_escaped(prompt)}*{_escaped(text)}" for sampler, text in texts]
            return f"**{_escaped(title)}**\n\n" + "\n".join(lines)
        case Command(text):
            return f"```\n{text}\n```"


def _markdown_entry(entry: Entry) -> str:
    shown = {"best": f"**{entry.text}**", "second": f"<u>{entry.text}</u>", "": _escaped(entry.text)}[entry.mark]
    return f"{shown}<br>{entry.note}" if entry.note else shown


def _escaped(text: str) -> str:
    """Text on one line with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", re.sub(r"\s*\n\s*", " ", text))


def html(title: str, blocks: list[Block]) -> str:
    """One page that needs no other file."""
    return render("document.html.jinja", title=title, blocks=[(type(block).__name__, block) for block in blocks])
