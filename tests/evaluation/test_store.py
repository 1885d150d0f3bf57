"""Files of records: whole lines or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from slalom.errors import SlalomError
from slalom.evaluation import store


def test_what_is_appended_is_read_again_whatever_it_holds(tmp_path: Path) -> None:
    records = [{"text": 'a "quoted"\nline\u2028 ä and more'}, {"text": "", "value": None}]
    store.append(tmp_path / "a.jsonl", records[:1])
    store.append(tmp_path / "a.jsonl", records[1:])
    assert store.read(tmp_path / "a.jsonl") == records


def test_a_torn_last_line_is_cut_off_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    store.append(path, [{"n": 1}, {"text": "ä"}])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert store.read(path) == [{"n": 1}]
        assert path.read_bytes() == whole[:first]


def test_a_line_that_was_changed_by_hand_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\nnonsense\n')
    with pytest.raises(SlalomError, match=r"a\.jsonl, line 2, is no JSON"):
        store.read(tmp_path / "a.jsonl")


def test_a_file_is_rewritten_in_one_go(tmp_path: Path) -> None:
    store.rewrite(tmp_path / "a.jsonl", [{"n": 1}])
    store.rewrite(tmp_path / "a.jsonl", [{"n": 2}])
    assert store.read(tmp_path / "a.jsonl") == [{"n": 2}]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert store.read(tmp_path / "none.jsonl") == []
    assert store.read_json(tmp_path / "none.json") is None
