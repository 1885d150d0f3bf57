"""What requests may wish for is held from the start: no request opens a file or reaches the network."""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

from slalom.api import SteerableModel
from slalom.backbone import weights
from slalom.backbone.names import DEFAULT
from slalom.constraints import encoder, loading, similar
from slalom.constraints.plugins import GROUP
from slalom.decoding import lm_steer
from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wishes import Wishes
from slalom.frontends.specs import TextSpec
from tests.conftest import tiny_classifier
from tests.frontends.server.conftest import LOCALHOST, NAME

classifier = importlib.import_module("slalom.constraints.classifier")  # the package has a function of that name
EXAMPLE = Path(__file__).parents[3] / "examples" / "extra_constraint"
LABELS = {"sentiment": ("negative", "neutral", "positive"), "toxicity": ("clean", "toxic")}
ASK = {"model": NAME, "prompt": "the food", "max_tokens": 4}
WISHES: list[dict[str, Any]] = [
    {"keywords": ["soup"], "topic": "soup,rain", "avoid": ["cold"], "whole_sentences": True},
    {"sentiment": "neutral"},
    {"sentiment": "negative", "detoxify": True, "sampler": "bolt"},
    {"similar": "a warm soup", "sampler": "dab"},
    {"classifier": "taste", "label": "GOOD", "description": "is tasty"},
    {"classifier": "taste", "label": "0", "sampler": "mucola", "knobs": {"inner": 2}},
    {"constraints": {"alliteration": "s"}},
    {"regex": "[a-z]"},
]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package, installed as far as entry points go."""
    info = tmp_path / "extra_constraint-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-constraint\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nalliteration = extra_constraint:Alliteration\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.fixture
def tiny_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny classifiers and a tiny encoder instead of the shipped ones, which would have to be fetched."""
    read = classifier.open_classifier

    def load(source: str) -> tuple[Any, Any]:
        if source not in LABELS:
            return read(source)
        model, tokenizer = tiny_classifier(LABELS[source])
        return model.float().requires_grad_(False), tokenizer

    @functools.cache
    def open_encoder(name: str) -> tuple[Any, Any]:
        model, tokenizer = tiny_classifier()
        return model.float().requires_grad_(False).bert, tokenizer

    monkeypatch.setattr(classifier, "open_classifier", load)
    monkeypatch.setattr(similar, "open_encoder", open_encoder)


def refusing(what: str) -> Callable[..., Any]:
    """Stands where nobody may go."""

    def refuse(*given: object, **options: object) -> None:
        raise AssertionError(f"a request came to {what}: {given}")

    return refuse


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, whoever opens a file, loads a model or connects to anything fails."""
    for place, name in (
        (loading, "read_classifier"),
        (loading, "load_file"),
        (lm_steer, "load_file"),
        (classifier, "open_classifier"),
        (weights, "ensure"),
        (builtins, "open"),
        (io, "open"),
        (socket, "create_connection"),
        (socket.socket, "connect"),
    ):
        monkeypatch.setattr(place, name, refusing(name))


@pytest.mark.usefixtures("plugin", "tiny_shipped")
def test_after_the_start_no_request_opens_a_file_or_reaches_the_network(
    chatty: SteerableModel, settings: ServeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = {"shipped": True, "allow_constraint": ["alliteration"], "allow_regex": True}
    app = make_app(chatty, settings.model_copy(update=changed))
    with TestClient(app, LOCALHOST) as client, monkeypatch.context() as patch:
        assert client.get("/props").json()["constraints"] == ["alliteration"]
        forbid_reading(patch)
        answers = [client.post("/v1/completions", json=ASK | {"slalom": wish | {"steps": 2}}) for wish in WISHES]
        chat = {"model": NAME, "messages": [{"role": "user", "content": "the food"}], "max_tokens": 4}
        for path in ("/v1/chat/completions", "/v1/steer/stream"):
            answers.append(client.post(path, json=chat | {"slalom": {"sentiment": "positive", "steps": 2}}))
        none = client.post("/v1/completions", json=ASK | {"slalom": {"detoxify": True, "sampler": "lm-steer"}})
    assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text for answer in answers]
    assert "event: error" not in answers[-1].text
    assert "no steer is shipped" in none.json()["error"]["message"]


@pytest.mark.usefixtures("tiny_shipped")
def test_the_shipped_steers_are_read_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lm_steer.kept_steer.cache_clear()
    wishes = Wishes(ServeSpec())
    forbid_reading(monkeypatch)
    for label in ("positive", "negative"):
        wish = wishes.constraint(TextSpec(sentiment=label))
        assert lm_steer.shipped_pull(DEFAULT, 1.0, wish).value == {"positive": 1, "negative": -1}[label]


def test_however_many_classifiers_are_registered_each_is_read_once(
    classifier_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [tmp_path / f"taste{number}" for number in range(10)]
    for source in sources:
        source.symlink_to(classifier_folder)
    monkeypatch.setattr(encoder, "has_openvino", lambda: False)
    wishes = Wishes(ServeSpec(shipped=False, allow_classifier=[f"{source.name}={source}" for source in sources]))
    wishes.prepare(torch.device("cpu"))
    forbid_reading(monkeypatch)
    for source in sources:
        for label in ("good", "bad"):
            made = wishes.constraint(TextSpec(classifier=source.name, label=label))
            assert made.name == f"classifier:{label}"
            assert made.describe() is None
        described = wishes.constraint(TextSpec(classifier=source.name, label="good", description="is tasty"))
        assert described.describe() == "is tasty"
