"""A job stopped in any way: what is finished is kept, nothing is written twice, the output is the same to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slalom.decoding.calibration import Calibration, remember
from slalom.errors import SlalomError
from slalom.frontends.batch import job
from slalom.frontends.batch.lines import FinishedLine, Line
from slalom.frontends.batch.side_files import SideFiles
from slalom.frontends.batch.texts import TextWriter, Work
from tests.frontends.batch.conftest import OPTIONS, mixed_rows, run, write_rows

ROWS = 62  # of a job that is stopped half-way


def finished_rows(out: Path) -> int:
    partial = Path(f"{out}.partial")
    return partial.read_bytes().count(b"\n") if partial.exists() else 0


def start(models: Path, source: Path, out: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "slalom.frontends.cli", "batch", str(source), str(out), "--model", f"{models}/lm"]
    # A shell that runs the tests in the background has SIGINT ignored, and what is ignored is inherited.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen([*words, *OPTIONS], stderr=subprocess.PIPE, preexec_fn=heed)


def stopped_half_way(models: Path, source: Path, out: Path, how: signal.Signals) -> subprocess.Popen[bytes]:
    """A real process, sent a signal when it has finished some rows; one of the others takes seconds longer.

    On a busy machine the signal may come too late all the same: then it is tried again.
    """
    for _ in range(5):
        process = start(models, source, out)
        deadline = time.monotonic() + 120
        while not finished_rows(out) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(how)
        process.wait()
        if finished_rows(out):
            break
        for path in out.parent.iterdir():
            path.unlink()
    return process


@pytest.fixture(scope="module")
def undisturbed(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, one of which takes seconds and the last of which is bad, beside what an undisturbed run writes for them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    slow = {"prompt": "we", "keywords": ["soup"], "sampler": "dab", "steps": 300}
    source = write_rows(folder / "in.jsonl", [slow, *mixed_rows(models, ROWS - 2), {"prompt": "we"}])
    assert run(models, source, folder / "out.jsonl").exit_code == 1
    return folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_stopped_half_way_is_gone_on_with(
    models: Path, undisturbed: Path, tmp_path: Path, how: signal.Signals
) -> None:
    source, out = undisturbed / "in.jsonl", tmp_path / "out.jsonl"
    process = stopped_half_way(models, source, out, how)
    done = finished_rows(out)
    assert 0 < done < ROWS
    assert not out.exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert process.stderr is not None
        assert "the same command goes on" in process.stderr.read().decode()
    before = Path(f"{out}.partial").read_bytes()
    again = start(models, source, out)
    while not out.exists():
        kept = Path(f"{out}.partial")
        assert not kept.exists() or kept.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
        time.sleep(0.01)
    assert again.wait() == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "out.jsonl.errors.jsonl"]
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (undisturbed / path.name).read_bytes()


class StoppedError(Exception):
    """As if the process had ended here."""


def stop_after(calls: int) -> job.Runner:
    def runner(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
        for number, some in enumerate(TextWriter(work).write(lines)):
            if number == calls:
                raise StoppedError
            yield some

    return runner


def one_row(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
    """A runner that ends after the first row."""
    yield [FinishedLine(0, 1, [])]
    raise StoppedError


def begin(models: Path, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a job."""
    with monkeypatch.context() as patched:
        patched.setattr(job, "run_local", stop_after(1))
        assert isinstance(run(models, source, out).exception, StoppedError)
    assert finished_rows(out)


@pytest.fixture
def source(models: Path, tmp_path: Path) -> Path:
    return write_rows(tmp_path / "in.jsonl", mixed_rows(models, 8))


@pytest.mark.parametrize("torn", [b'{"number": 5, "li', b"{}"])
def test_a_torn_last_line_is_written_anew(
    models: Path, source: Path, monkeypatch: pytest.MonkeyPatch, torn: bytes
) -> None:
    out, whole = source.with_name("out.jsonl"), source.with_name("whole.jsonl")
    run(models, source, whole)
    begin(models, source, out, monkeypatch)
    with Path(f"{out}.partial").open("ab") as file:
        file.write(torn)
    assert run(models, source, out).exit_code == 0
    assert out.read_bytes() == whole.read_bytes()


def test_finished_rows_are_not_written_again(models: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = source.with_name("out.jsonl")
    begin(models, source, out, monkeypatch)
    done = {json.loads(line)["number"] for line in Path(f"{out}.partial").read_text().splitlines()}
    asked: list[int] = []

    def watched(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
        return TextWriter(work).write(line for line in lines if asked.append(line.number) is None)

    monkeypatch.setattr(job, "run_local", watched)
    assert run(models, source, out).exit_code == 0
    assert sorted(asked) == sorted(set(range(8)) - done)


def test_a_job_whose_rows_are_all_finished_loads_no_model(
    models: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill just before the output was put in its place."""
    out = source.with_name("out.jsonl")
    with monkeypatch.context() as patched:
        patched.setattr(job, "write_output", lambda *_: (_ for _ in ()).throw(StoppedError))
        run(models, source, out)
    monkeypatch.setattr(job, "run_local", lambda *_: pytest.fail("there is nothing to write"))
    assert run(models, source, out).exit_code == 0
    assert out.exists()


@pytest.mark.parametrize(
    ("option", "said"), [(("--seed", "7"), "seed"), (("--repetition-penalty", "1.5"), "repetition_penalty")]
)
def test_other_settings_are_refused_by_name(
    models: Path, source: Path, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], said: str
) -> None:
    out = source.with_name("out.jsonl")
    begin(models, source, out, monkeypatch)
    refused = run(models, source, out, *option)
    assert refused.exit_code == 2
    assert f"another {said} of settings" in refused.stderr
    assert "--restart" in refused.stderr
    assert run(models, source, out, *option, "--restart").exit_code == 0


def test_another_input_or_another_model_in_the_same_folder_is_refused(
    models: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out.jsonl")
    begin(models, source, out, monkeypatch)
    weights = models / "lm" / "model.safetensors"
    state = weights.stat()
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    assert "of files" in run(models, source, out).stderr
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    rows = source.read_text()
    source.write_text(rows.replace("soup", "rain"))
    assert "of input" in run(models, source, out).stderr
    source.write_text(rows)
    assert run(models, source, out).exit_code == 0


def test_another_precision_is_refused_by_name_and_the_first_one_can_be_asked_for(
    models: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out.jsonl")
    monkeypatch.setenv("SLALOM_DTYPE", "float32")
    begin(models, source, out, monkeypatch)
    kept = Path(f"{out}.partial").read_bytes()
    monkeypatch.setenv("SLALOM_DTYPE", "bfloat16")
    refused = run(models, source, out)
    assert refused.exit_code == 2
    assert "another engine, dtype or device" in refused.stderr
    assert "(then torch in float32 on cpu, now torch in bfloat16 on cpu)" in refused.stderr
    assert "--restart" in refused.stderr
    assert Path(f"{out}.partial").read_bytes() == kept
    assert run(models, source, out, "--dtype", "float32").exit_code == 0


@pytest.mark.parametrize("shape", ["row", "openai"])
@pytest.mark.parametrize("wish", [{"classifier": "{folder}", "label": "good"}, {"knobs": {"steer": "{folder}"}}])
def test_another_classifier_or_steer_in_a_folder_that_only_rows_name_is_refused(
    tmp_path: Path, shape: str, wish: dict[str, Any]
) -> None:
    folder = tmp_path / "clf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    wish = json.loads(json.dumps(wish).replace("{folder}", str(folder)))
    row = {"prompt": "we", **wish} if shape == "row" else {"custom_id": "a", "body": {"prompt": "we", "slalom": wish}}
    source = write_rows(tmp_path / "in.jsonl", [row, {"classifier": "x" * 5000}, {"classifier": 7, "knobs": 7}])
    files = job.Files(source, ".jsonl", tmp_path / "out.jsonl", ".jsonl")
    with pytest.raises(StoppedError):
        job.run_job(files, Work({}, {}), one_row, restart=False, watch=lambda _: None)
    (folder / "config.json").write_text('{"other": 1}')
    with pytest.raises(SlalomError, match=r"another .*clf of files"):
        job.run_job(files, Work({}, {}), one_row, restart=False, watch=lambda _: None)


@pytest.mark.parametrize("sampler", ["dab", "climb"])
def test_another_calibration_is_refused_if_the_job_has_rows_of_dab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    source = write_rows(tmp_path / "in.jsonl", [{"prompt": "we", "sampler": sampler}, {}])
    files = job.Files(source, ".jsonl", tmp_path / "out.jsonl", ".jsonl")
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "home"))

    def go_on() -> None:
        job.run_job(files, Work({"model": "some/lm"}, {}), one_row, restart=False, watch=lambda _: None)

    with pytest.raises(StoppedError):
        go_on()
    remember("some/lm", Calibration(1.9, []))
    refusal = r"another weight of calibration \(then null, now 1.9\)"
    with pytest.raises(SlalomError, match=refusal) if sampler == "dab" else pytest.raises(StoppedError):
        go_on()


def test_the_output_is_on_the_disk_before_the_side_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, happened = tmp_path / "out.jsonl", []
    source = write_rows(tmp_path / "in.jsonl", [{}])
    remove = SideFiles.remove
    monkeypatch.setattr(os, "fsync", lambda file: happened.append(os.fstat(file).st_ino))
    monkeypatch.setattr(SideFiles, "remove", lambda side: happened.append("removed") or remove(side))

    def runner(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
        yield [FinishedLine(0, 1, [{"text": "soup"}])]

    job.run_job(job.Files(source, ".jsonl", out, ".jsonl"), Work({}, {}), runner, restart=False, watch=lambda _: None)
    assert happened[-3:] == [out.stat().st_ino, tmp_path.stat().st_ino, "removed"]


def test_a_side_file_changed_by_hand_is_named(models: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = source.with_name("out.jsonl")
    begin(models, source, out, monkeypatch)
    Path(f"{out}.partial").write_text("nonsense\n")
    refused = run(models, source, out)
    assert isinstance(refused.exception, SystemExit | SlalomError)
    assert "out.jsonl.partial" in refused.stderr


def test_rows_that_went_from_the_input_meanwhile_are_told_and_nothing_is_called_done(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "we"}\n{"prompt": "they"}\n{"prompt": "you"}\n')

    def runner(lines: Iterator[Line], work: Work) -> Iterator[list[FinishedLine]]:
        yield [FinishedLine.failed(next(lines), "no")]

    with pytest.raises(SlalomError, match=r"2 of the 3 rows that .* had are not there any more"):
        job.run_job(
            job.Files(source, ".jsonl", out, ".jsonl"), Work({}, {}), runner, restart=False, watch=lambda _: None
        )
    assert not out.exists()
