"""Training rows: read with clear complaints, and written again as people write."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from slalom.errors import SlalomError
from slalom.training.data import Example, augment, balanced, batches, collate, naturalise, read_rows, written_beside


@pytest.mark.parametrize(
    ("tokenised", "natural"),
    [
        ("i do n't like it .", "I don't like it."),
        ("it 's good , but they 're slow !", "It's good, but they're slow!"),
        ("( really ) ?", "(really)?"),
        ("great . i loved it", "Great. I loved it"),
    ],
)
def test_tokenised_text_becomes_text_as_people_write_it(tokenised: str, natural: str) -> None:
    assert naturalise(tokenised, random.Random(0)) == natural


def test_half_of_the_rows_are_rewritten_and_every_label_is_kept() -> None:
    rows = [Example(f"i do n't like it {number}", number % 2) for number in range(400)]
    changed = augment(rows, random.Random(0))
    assert 150 < sum(old.text != new.text for old, new in zip(rows, changed, strict=True)) < 250
    assert [row.label for row in rows] == [row.label for row in changed]


def test_rows_are_read_by_split_and_long_ones_left_out(tmp_path: Path) -> None:
    lines = [{"text": "good", "label": 1, "split": "train"}, {"text": "bad", "label": 0, "split": "test"}]
    lines.append({"text": "long " * 30, "label": 1, "split": "train"})
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert read_rows([tmp_path / "rows.jsonl.gz"], ("train",), 20) == [Example("good", 1, "rows.jsonl.gz:")]


def test_balanced_rows_give_no_label_away_by_their_source() -> None:
    rows = [Example("x", int(number < 20), "a:mixed") for number in range(100)]
    rows += [Example("y", 0, "b:clean")] * 30 + [Example("z", 1, "b:toxic")] * 50
    kept = balanced(rows, random.Random(0))
    for text, count in (("x", 40), ("y", 30), ("z", 30)):
        assert sum(row.text == text for row in kept) == count
    assert sum(row.label for row in kept if row.text == "x") == 20


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "good", "label": 1, "split": "train"}\n{"text": "bad"}\n')
    with pytest.raises(SlalomError, match="line 2: expected a JSON object with text, label, split"):
        read_rows([tmp_path / "rows.jsonl"], ("train",), 20)
    with pytest.raises(SlalomError, match="there is no file"):
        read_rows([tmp_path / "none.jsonl"], ("train",), 20)


def test_collate_pads_on_the_right() -> None:
    batch = collate([[1, 2, 3], [4]], [0, 1])
    assert batch.ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 0, 0]]


def test_batches_hold_every_row_once_with_its_label() -> None:
    encoded = [[number] * (1 + number % 7) for number in range(50)]
    made = list(batches(encoded, [number % 2 for number in range(50)], 8, random.Random(0)))
    assert sorted(row[0] for batch in made for row in batch.ids.tolist()) == list(range(50))
    for batch in made:
        assert (batch.ids[:, 0] % 2).tolist() == batch.labels.tolist()
        assert batch.mask.sum(-1).tolist() == (1 + batch.ids[:, 0] % 7).tolist()


def test_a_folder_that_could_not_be_filled_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with written_beside(out) as beside:
        (beside / "a").write_text("old")
    with pytest.raises(ZeroDivisionError), written_beside(out) as beside:
        (beside / "a").write_text(str(1 / 0))
    assert (out / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]


def test_a_label_may_be_the_shares_of_all_labels(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "so so", "label": [0.25, 0.75], "split": "train"}\n')
    (row,) = read_rows([path], ("train",), 60)
    assert (row.label, row.shares) == (1, (0.25, 0.75))
    assert collate([[1]], [row.shares]).labels.tolist() == [[0.25, 0.75]]
