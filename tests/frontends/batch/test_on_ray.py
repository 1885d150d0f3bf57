"""slalom batch --runner ray: the same texts, whoever writes them and whoever dies while doing so."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.frontends.batch.conftest import mixed_rows, run, write_rows

ON_RAY = ("--runner", "ray", "--cpus-per-actor", "0.5")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A small cluster on this machine."""
    ray = pytest.importorskip("ray")
    paths = os.pathsep.join(path for path in sys.path if path)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def source(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of several tasks, one of them bad, beside what the local runner writes for them."""
    folder = tmp_path_factory.mktemp("rows")
    rows = write_rows(folder / "in.jsonl", [*mixed_rows(models, 100), {"prompt": "we"}])
    run(models, rows, folder / "out.jsonl")
    return rows


def actors() -> list[psutil.Process]:
    """The processes of the actors that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any("SlalomActor" in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def assert_same(out: Path, source: Path) -> None:
    for name in ("out.jsonl", "out.jsonl.errors.jsonl"):
        assert out.with_name(name).read_bytes() == source.with_name(name).read_bytes()


@pytest.mark.usefixtures("cluster")
def test_ray_writes_the_same_bytes_as_this_process_even_if_an_actor_is_killed(
    models: Path, source: Path, tmp_path: Path
) -> None:
    out, killed = tmp_path / "out.jsonl", []

    def kill_one() -> None:
        partial = Path(f"{out}.partial")
        while not (partial.exists() and partial.stat().st_size):
            time.sleep(0.005)
        for process in actors()[:1]:
            os.kill(process.pid, signal.SIGKILL)
            killed.append((process.pid, partial.read_bytes().count(b"\n")))

    threading.Thread(target=kill_one, daemon=True).start()
    done = run(models, source, out, *ON_RAY, "--actors", "2")
    assert done.exit_code == 1, done.stderr
    assert [0 < finished < 101 for _, finished in killed] == [True]
    assert_same(out, source)


@pytest.mark.usefixtures("cluster")
def test_what_one_runner_has_begun_the_other_goes_on_with(
    models: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slalom.frontends.batch import job
    from tests.frontends.batch.test_resuming import stop_after

    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(job, "run_local", stop_after(1))
        run(models, source, out)
    assert 0 < Path(f"{out}.partial").read_bytes().count(b"\n") < 101
    assert run(models, source, out, *ON_RAY).exit_code == 1
    assert_same(out, source)


@pytest.mark.usefixtures("cluster")
def test_a_model_that_no_actor_can_load_is_one_sentence(source: Path, tmp_path: Path) -> None:
    refused = run(tmp_path, source, tmp_path / "out.jsonl", *ON_RAY)
    assert refused.exit_code == 2
    assert "there is no folder" in refused.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_without_ray_a_sentence_says_how_to_get_it(
    models: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    refused = run(models, source, tmp_path / "out.jsonl", *ON_RAY)
    assert refused.exit_code == 2
    assert "pip install 'slalom[ray]'" in refused.stderr
