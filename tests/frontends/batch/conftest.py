"""Tiny models on the disk and rows to write, for every test of a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slalom.frontends.cli import app
from tests.conftest import tiny_classifier, tiny_lm

OPTIONS = ("--length", "6", "--steps", "2", "--engine", "torch")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny LM and a tiny classifier."""
    root = tmp_path_factory.mktemp("models")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(root / "lm")
    lm.tokenizer.save_pretrained(root / "lm")
    model, tokenizer = tiny_classifier()
    model.float().save_pretrained(root / "clf")
    tokenizer.save_pretrained(root / "clf")
    return root


def mixed_rows(models: Path, count: int) -> list[dict[str, Any]]:
    """Rows of different prompts, wishes, lengths, samplers and seeds."""
    prompts, words = ["the food", "we", "a lovely day by", "the soup was"], ["soup", "rain", "day"]
    rows: list[dict[str, Any]] = []
    for number in range(count):
        row: dict[str, Any] = {"prompt": prompts[number % 4], "seed": number, "length": 4 + number % 5}
        if number % 3:
            row["keywords"] = [words[number % 2]]
        else:
            row |= {"classifier": f"{models}/clf", "label": "good", "samples": 2}
        if number % 4 == 3:
            row["sampler"] = "dab"
        rows.append(row)
    return rows


def write_rows(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(models: Path, *words: object, stdin: str | None = None):  # type: ignore[no-untyped-def]
    """`slalom batch` on the tiny LM."""
    said = ["batch", *map(str, words), "--model", f"{models}/lm", *OPTIONS]
    return CliRunner().invoke(app, said, input=stdin)
