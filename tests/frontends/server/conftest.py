"""A server with a tiny instruct LM: in this process, and on a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from slalom.api import SteerableModel
from slalom.frontends.serve_command import listening_socket
from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from tests.conftest import tiny_classifier, tiny_lm

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
NAME = "llama-tied"
LOCALHOST = "http://127.0.0.1"

Serving = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def chatty() -> SteerableModel:
    """A tiny instruct LM whose template has control tokens."""
    lm = tiny_lm(NAME, extra_rows=2, positions=512)
    lm.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    lm.tokenizer.chat_template = TEMPLATE
    return lm


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier of bad and good, saved as anyone would save theirs."""
    folder = tmp_path_factory.mktemp("classifier")
    model, tokenizer = tiny_classifier()
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def settings(classifier_folder: Path) -> ServeSpec:
    """A server without the shipped classifiers, which would have to be fetched; one of ours instead."""
    return ServeSpec(shipped=False, allow_classifier=[f"taste={classifier_folder}"], max_seconds=60)


@pytest.fixture(scope="session")
def client(chatty: SteerableModel, settings: ServeSpec) -> Iterator[TestClient]:
    """A client of that server, in this process."""
    with TestClient(make_app(chatty, settings), LOCALHOST) as client:
        yield client


@pytest.fixture(scope="session")
def serving(chatty: SteerableModel, settings: ServeSpec) -> Serving:
    """Serves on a real socket with these settings changed, while open; the server's address."""

    @contextmanager
    def run(**changed: object) -> Iterator[str]:
        app = make_app(chatty, settings.model_copy(update=changed))
        with listening_socket("127.0.0.1", 0) as bound:
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
            thread.start()
            while not server.started:
                time.sleep(0.01)
            try:
                yield f"http://127.0.0.1:{bound.getsockname()[1]}"
            finally:
                server.should_exit = True
                thread.join()

    return run
