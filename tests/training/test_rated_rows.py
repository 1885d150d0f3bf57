"""The guide's rows and the judge's: three labels, and nothing in common."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from slalom.training.rated_rows import SENTIMENT_SHARES, SIDES, rows_of


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A little of everything."""
    sources = [source for side in SIDES.values() for source in side.labelled]
    write(
        tmp_path / "sentiment3.jsonl.gz",
        [
            {"text": f"{source} says {number}", "label": number % 3, "source": source, "split": "train"}
            for source in sources
            for number in range(6)
        ],
    )
    neutral = [source for side in SIDES.values() for source in side.neutral]
    text = (
        "The bridge -- It crosses the river at two places near the town. The bridge was a terrible disaster for us all."
    )
    write(tmp_path / "general_text.jsonl.gz", [{"text": text, "source": source} for source in neutral])
    drafts = [
        {
            "prompt": f"The thing {number}",
            "text": " is here.",
            "sentiment": number % 5 - 2,
            "fluency": 3,
            "split": "train",
        }
        for number in range(60)
    ]
    held_out = [{"prompt": "The end", "text": " is near.", "sentiment": -1, "fluency": 4, "split": "dev"}]
    write(tmp_path / "drafts_read.jsonl.gz", drafts + held_out)
    rated = {"prompt": "More", "text": " of it.", "sentiment": 2, "fluency": 5, "split": "train"}
    write(tmp_path / "rated.jsonl.gz", [rated])
    return tmp_path


def test_the_judge_learns_from_nothing_the_guide_has_seen(data: Path) -> None:
    guide, judge = (
        {row["text"] for row in rows_of(name, data, data / "rated.jsonl.gz") if row["split"] != "test"}
        for name in ("guide", "judge")
    )
    neutral = {text for text in guide & judge if text.startswith("It crosses")}  # the same sentence in every source
    assert guide & judge == neutral
    assert len(guide) > len(judge) > 10


def test_ratings_become_three_labels_and_the_dev_part_is_for_measuring_alone(data: Path) -> None:
    rows = rows_of("guide", data, data / "rated.jsonl.gz")
    labels = {row["text"]: row["label"] for row in rows if row["source"] == "drafts as read"}
    for number in range(60):
        found, rating = labels.get(f"The thing {number} is."), number % 5 - 2
        assert found in (None, SENTIMENT_SHARES[rating], [0, 0, 1, 2, 2][rating + 2])
    assert labels["The end is near."] == 0
    assert [row["split"] for row in rows if row["text"] == "The end is near."] == ["test"]
    assert {row["split"] for row in rows if row["source"] == "drafts as read"} == {"train", "calibration", "test"}


def test_a_sentence_with_an_opinion_is_not_taken_for_neutral(data: Path) -> None:
    texts = [
        row["text"]
        for row in rows_of("guide", data, data / "rated.jsonl.gz")
        if row["source"] in SIDES["guide"].neutral
    ]
    assert texts
    assert not any("terrible" in text or "--" in text for text in texts)


def test_what_is_learned_from_has_shares_and_what_is_measured_on_has_labels(data: Path) -> None:
    rows = rows_of("guide", data, data / "rated.jsonl.gz")
    drafts = [row for row in rows if row["source"] == "drafts as read"]
    assert all(isinstance(row["label"], list) == (row["split"] == "train") for row in drafts)
    assert all(sum(row["label"]) == pytest.approx(1) for row in drafts if row["split"] == "train")
