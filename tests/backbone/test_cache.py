"""The cache folder: where it is, and what is said when it cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slalom.backbone import cache
from slalom.errors import SlalomError


def test_the_environment_variable_decides_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "mine"))
    assert cache.home() == tmp_path / "mine"


@pytest.mark.skipif(sys.platform != "linux", reason="the place differs by platform")
def test_without_it_the_cache_is_in_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SLALOM_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.home() == tmp_path / "xdg" / "slalom"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.home() == tmp_path / ".cache" / "slalom"


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(SlalomError, match="set SLALOM_HOME"):
        cache.made_once(cache.home() / "models" / "any", lambda target: None)
