"""`slalom serve` as an operator starts, misuses and stops it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from slalom.api import SteerableModel
from slalom.errors import SlalomError
from slalom.frontends.cli import app
from slalom.frontends.serve_command import serve_spec
from slalom.frontends.server.settings import ServeSpec

LONG = {"model": "lm", "prompt": "the food", "max_tokens": 24, "slalom": {"keywords": ["xylophone"], "steps": 12}}


@pytest.fixture(scope="module")
def folder(chatty: SteerableModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LM, saved as anyone would save theirs."""
    root = tmp_path_factory.mktemp("models")
    chatty.model.save_pretrained(root / "lm")
    chatty.tokenizer.save_pretrained(root / "lm")
    return root


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real `slalom serve`, and its address."""
    command = [
        sys.executable,
        "-m",
        "slalom.frontends.cli",
        "serve",
        "--engine",
        "torch",
        "--no-shipped",
        "--port",
        "0",
    ]
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, (line, process.communicate(timeout=10))
        yield process, found[0].replace("0.0.0.0", "127.0.0.1")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def answered(url: str) -> None:
    """Wait until the server answers."""
    transport = httpx.HTTPTransport(retries=20)
    with httpx.Client(transport=transport) as client:
        assert client.get(f"{url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_is_under_way_finish_and_ends_with_status_0(folder: Path, stop: signal.Signals) -> None:
    with started("--model", f"{folder}/lm") as (process, url):
        answered(url)
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/v1/completions", json=LONG, timeout=60))
        )
        asking.start()
        while "slalom_rows 1.0" not in httpx.get(f"{url}/metrics").text:
            assert asking.is_alive()
        process.send_signal(stop)
        asking.join()
        _, stderr = process.communicate(timeout=60)
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] > 0
    assert process.returncode == 0
    assert "Traceback" not in stderr
    assert "curl http" in stderr
    assert "warning" not in stderr


def test_after_the_grace_period_what_is_under_way_is_dropped(folder: Path) -> None:
    endless = LONG | {"max_tokens": 300, "slalom": {"keywords": ["xylophone"], "sampler": "dab", "steps": 200}}
    with started("--model", f"{folder}/lm", "--grace", "1", "--host", "0.0.0.0") as (process, url):
        answered(url)
        with httpx.stream("POST", f"{url}/v1/steer/stream", json=endless, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "warning: 0.0.0.0 is open to other machines and no key is asked for; set SLALOM_API_KEY" in stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--queue", "0"], "queue is 0; input should be greater than or equal to 1"),
        (["--port", "70000"], "port is 70000"),
        (["--allow-classifier", "tone", "--no-shipped", "--model", "{folder}/lm"], "it must look like NAME=FOLDER"),
        (
            ["--allow-classifier", "a=x", "--allow-classifier", "a=y", "--no-shipped", "--model", "{folder}/lm"],
            "'a' twice",
        ),
        (["--allow-classifier", "a={folder}", "--no-shipped", "--model", "{folder}/lm"], "holds no classifier"),
        (["--allow-constraint", "rhyme", "--no-shipped", "--model", "{folder}/lm"], "--allow-constraint is 'rhyme'"),
        (["--model", "./nowhere"], "there is no folder './nowhere'"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
    ],
)
def test_misuse_gets_one_sentence_and_status_2(folder: Path, words: list[str], complaint: str) -> None:
    port = [] if "--port" in words else ["--port", "0"]
    out = CliRunner().invoke(app, ["serve", *port, *(word.replace("{folder}", str(folder)) for word in words)])
    assert out.exit_code == 2
    assert complaint in out.stderr


def test_a_port_that_is_taken_is_known_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        out = CliRunner().invoke(app, ["serve", "--port", port, "--model", "./nowhere"])
    assert out.exit_code == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in out.stderr


def test_the_key_comes_from_the_environment_unless_it_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert serve_spec({}).api_key is None
    monkeypatch.setenv("SLALOM_API_KEY", "sesame")
    assert serve_spec({}).api_key == "sesame"
    assert serve_spec({"api_key": "other"}).api_key == "other"
    assert "sesame" not in repr(serve_spec({}))
    with pytest.raises(SlalomError, match="api_key"):
        serve_spec({"api_key": ""})


def test_a_folder_is_called_by_its_last_part_however_it_was_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder / "lm")
    for typed in (".", "./", "../lm", "../lm/", str(folder / "lm")):
        assert ServeSpec().served_name(typed) == "lm"
    assert ServeSpec().served_name("someone/some-lm") == "someone/some-lm"
    assert ServeSpec(name="own").served_name(".") == "own"


def test_without_the_extra_a_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    out = CliRunner().invoke(app, ["serve", "--port", "0"])
    assert out.exit_code == 2
    assert "pip install 'slalom[server]'" in out.stderr


def test_help_has_examples() -> None:
    out = CliRunner().invoke(app, ["serve", "--help"])
    assert out.exit_code == 0
    assert "slalom serve --model ./my-llama" in out.stdout
