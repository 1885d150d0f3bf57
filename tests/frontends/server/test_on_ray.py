"""slalom serve --runner ray: the same HTTP face and the same texts, from replicas on Ray Serve."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from slalom.frontends.ray_cluster import Cluster
from slalom.frontends.serve_command import listening_socket
from slalom.frontends.server.on_ray import build_app, deployed
from slalom.frontends.server.settings import ServeSpec
from tests.conftest import tiny_lm
from tests.frontends.server.conftest import LOCALHOST

BODY = {"model": "lm", "prompt": "we", "max_tokens": 5, "n": 2, "slalom": {"keywords": ["soup"], "steps": 2}}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ServeSpec:
    """A server of the tiny LM."""
    folder = tmp_path_factory.mktemp("models") / "lm"
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return ServeSpec(model=str(folder), engine="torch", shipped=False)


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


def free_port() -> int:
    with listening_socket("127.0.0.1", 0) as bound:
        return int(bound.getsockname()[1])


def lasting(answer: httpx.Response) -> dict[str, Any]:
    """An answer without what differs from request to request."""
    return {name: value for name, value in answer.json().items() if name not in ("id", "created")}


@pytest.mark.usefixtures("cluster")
def test_replicas_answer_as_the_server_in_this_process_does(settings: ServeSpec) -> None:
    port = free_port()
    with (
        deployed(settings, port, Cluster(actors=2, cpus_per_actor=0.5)),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as there,
        TestClient(build_app(settings), LOCALHOST) as here,
    ):
        for body in (BODY, BODY | {"seed": 3}, BODY | {"colour": "red"}):
            answers = [client.post("/v1/completions", json=body) for client in (there, here)]
            assert answers[0].status_code == answers[1].status_code
            assert lasting(answers[0]) == lasting(answers[1])
        with there.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as stream:
            assert [line for line in stream.iter_lines() if line][-1] == "data: [DONE]"
        assert there.get("/health").json() == {"status": "ok"}


def test_a_replica_writes_the_log_that_the_operator_asked_for(
    settings: ServeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("slalom.server")
    before = logger.level
    logger.setLevel(logging.NOTSET)  # as in a process that Ray has just started
    try:
        with TestClient(build_app(settings.model_copy(update={"log_prompts": True})), LOCALHOST) as here:
            here.post("/v1/completions", json=BODY)
    finally:
        logger.setLevel(before)
    assert "POST /v1/completions 200" in caplog.text
    assert "prompts ['we']" in caplog.text


def test_the_command_serves_until_it_is_told_to_stop(settings: ServeSpec, tmp_path: Path) -> None:
    words = ["serve", "--runner", "ray", "--model", str(settings.model), "--engine", "torch", "--no-shipped"]
    command = [sys.executable, "-m", "slalom.frontends.cli", *words, "--port", "0", "--cpus-per-replica", "0.5"]
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        said = next((line for line in process.stdout if "Slalom serves" in line), "")
        assert said, (tmp_path / "errors").read_text()
        answer = httpx.post(f"{said.split()[-1]}/v1/completions", json=BODY, timeout=60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    with TestClient(build_app(settings), LOCALHOST) as here:
        assert lasting(answer) == lasting(here.post("/v1/completions", json=BODY))
