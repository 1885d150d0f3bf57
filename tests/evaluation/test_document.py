"""Documents: the same blocks as Markdown and as a page, with all text escaped."""

from __future__ import annotations

from typing import get_args

from slalom.evaluation.document import (
    Block,
    Bullets,
    Command,
    Entry,
    ExampleTexts,
    Figure,
    Heading,
    Paragraph,
    Table,
    html,
    markdown,
)


def test_every_kind_of_block_is_in_the_markdown_and_on_the_page() -> None:
    blocks: list[Block] = [
        Heading("heading"),
        Paragraph("paragraph"),
        Bullets(["bullet"]),
        Table(["column"], [[Entry("row", "best", "note")]], "caption"),
        Figure("plot", "<svg></svg>", "drawing"),
        ExampleTexts("title", "prompt", [("dab", " continuation")]),
        Command("slalom eval"),
    ]
    assert {type(block) for block in blocks} == set(get_args(Block))
    page, text = html("t", blocks), markdown(blocks)
    words = ("heading", "paragraph", "bullet", "column", "row", "note", "caption", "drawing", "title", "prompt")
    for word in (*words, "dab", "continuation", "slalom eval"):
        assert word in page.partition("<body>")[2], word
        assert word in text, word
    assert "<strong>row</strong>" in page
    assert "<svg></svg>" in page


def test_foreign_text_is_shown_and_not_interpreted() -> None:
    nasty = "<script>alert(1)</script> | **bold** _x_\nnext"
    blocks: list[Block] = [
        Paragraph(nasty),
        Table(["a", "b"], [[Entry("row"), Entry(nasty)]]),
        ExampleTexts("t", nasty, [("dab", nasty)]),
    ]
    page = html("t", blocks)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    text = markdown(blocks)
    assert "\\<script\\>" in text
    assert "\\*\\*bold\\*\\*" in text
    assert max(line.count(" | ") for line in text.splitlines()) == 1  # the table has two columns still
