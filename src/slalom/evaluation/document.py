"""A document of headings, tables, figures and texts to Markdown and to one self-contained HTML page."""

from __future__ import annotations

import re
from html import escape
from typing import Literal, NamedTuple

Mark = Literal["", "best", "second"]


class Entry(NamedTuple):
    """One entry of a table."""

    text: str
    mark: Mark = ""
    note: str = ""  # smaller, below


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
    words: bool = False  # entries are words, not figures


class Figure(NamedTuple):
    """A drawing."""

    name: str  # of its file
    svg: str
    caption: str


class Example(NamedTuple):
    """A prompt and what several samplers made of it."""

    title: str
    prompt: str
    texts: list[tuple[str, str]]  # whose, and the continuation


class Command(NamedTuple):
    """Something to be typed."""

    text: str


Block = Heading | Paragraph | Bullets | Table | Figure | Example | Command


def markdown(blocks: list[Block]) -> str:
    """The document with its figures in files beside it, in `figures/`."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return _plain(text)
        case Bullets(items):
            return "\n".join(f"- {_plain(item)}" for item in items)
        case Table(columns, rows, caption, _):
            head = f"*{_plain(caption)}*\n\n" if caption else ""
            table = [columns, ["---"] * len(columns)] + [[_markdown_entry(entry) for entry in row] for row in rows]
            return head + "\n".join(f"| {' | '.join(line)} |" for line in table)
        case Figure(name, _, caption):
            return f"![{_plain(caption)}](figures/{name}.svg)"
        case Example(title, prompt, texts):
            lines = [f"- {_plain(whose)}: *{_plain(prompt)}*{_plain(text)}" for whose, text in texts]
            return f"**{_plain(title)}**\n\n" + "\n".join(lines)
        case Command(text):
            return f"```\n{text}\n```"


def _markdown_entry(entry: Entry) -> str:
    shown = {"best": f"**{entry.text}**", "second": f"<u>{entry.text}</u>", "": _plain(entry.text)}[entry.mark]
    return f"{shown}<br>{entry.note}" if entry.note else shown


def _plain(text: str) -> str:
    """Text that Markdown leaves as it is, on one line."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", re.sub(r"\s*\n\s*", " ", text))


def html(title: str, blocks: list[Block]) -> str:
    """One page that needs nothing else."""
    body = "\n".join(_html(block) for block in blocks)
    return PAGE.replace("{{title}}", escape(title)).replace("{{body}}", body)


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{escape(text)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"
        case Table(columns, rows, caption, words):
            named = f"<caption>{escape(caption)}</caption>" if caption else ""
            head = "".join(f"<th>{escape(column)}</th>" for column in columns)
            lines = "".join(f"<tr>{_html_row(row)}</tr>" for row in rows)
            inside = f"{named}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody>"
            return f'<div class="wide"><table class="{"words" if words else "figures"}">{inside}</table></div>'
        case Figure(name, svg, caption):
            return f'<figure id="{escape(name)}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'
        case Example(title, prompt, texts):
            lines = "".join(
                f"<dt>{escape(whose)}</dt><dd><em>{escape(prompt)}</em>{escape(text)}</dd>" for whose, text in texts
            )
            return f'<div class="example"><h4>{escape(title)}</h4><dl>{lines}</dl></div>'
        case Command(text):
            return f"<pre>{escape(text)}</pre>"


def _html_row(row: list[Entry]) -> str:
    first, *others = row
    return f'<th scope="row">{_html_entry(first)}</th>' + "".join(f"<td>{_html_entry(entry)}</td>" for entry in others)


def _html_entry(entry: Entry) -> str:
    text = escape(entry.text)
    shown = {"best": f"<strong>{text}</strong>", "second": f"<u>{text}</u>", "": text}[entry.mark]
    return f"{shown}<small>{escape(entry.note)}</small>" if entry.note else shown


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{title}}</title>
<style>
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", sans-serif; color: #1c2430;
  background: #fff; max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; overflow-wrap: anywhere; }
h1 { font-size: 1.8rem; margin: 0 0 .5rem; }
h2 { font-size: 1.35rem; margin: 2.5rem 0 .5rem; padding-top: .75rem; border-top: 1px solid #d8dee6; }
h3 { font-size: 1.1rem; margin: 1.75rem 0 .25rem; }
h4 { font-size: 1rem; margin: 0 0 .4rem; }
p, ul { max-width: 46rem; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; min-width: 50%; }
caption { caption-side: top; text-align: left; color: #4a5666; padding-bottom: .4rem; }
th, td { padding: .35rem .55rem; border-bottom: 1px solid #e4e9ef; vertical-align: top; overflow-wrap: normal; }
thead th { text-align: right; border-bottom: 2px solid #1c2430; vertical-align: bottom; }
thead th:first-child, tbody th { text-align: left; font-weight: 500; white-space: nowrap; }
td { text-align: right; white-space: nowrap; }
table.words td, table.words thead th { text-align: left; white-space: normal; }
small { display: block; color: #66727f; font-size: .78rem; font-weight: 400; text-decoration: none; }
figure { margin: 1.25rem 0; }
figure svg { max-width: 100%; height: auto; display: block; }
figcaption { color: #4a5666; font-size: .9rem; max-width: 46rem; }
.example { border-left: 3px solid #c9d3de; padding: .2rem 0 .2rem .9rem; margin: 1rem 0; }
dl { margin: 0; display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem; font-size: .92rem; }
dt { color: #4a5666; } dd { margin: 0; } dd em { color: #66727f; font-style: normal; }
pre { background: #f4f6f9; padding: .7rem .9rem; white-space: pre-wrap; font-size: .85rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; } dt { margin-top: .5rem; } }
</style>
</head>
<body>
{{body}}
</body>
</html>
"""
