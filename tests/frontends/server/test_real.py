"""The real default model behind the server, with the shipped classifiers."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from slalom.api import SteerableModel
from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from tests.frontends.server.conftest import LOCALHOST

pytestmark = pytest.mark.real


def test_a_wish_is_told_steered_to_and_fulfilled(default_lm: SteerableModel) -> None:
    with TestClient(make_app(default_lm, ServeSpec()), LOCALHOST) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {
            "model": model,
            "prompt": "The noodles",
            "slalom": {"sentiment": "negative", "detoxify": True, "steps": 20},
        }
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["slalom"]["satisfied"]
    assert [wish["name"] for wish in choice["slalom"]["constraints"]] == ["sentiment:negative", "toxicity:low"]
    assert "disappointment" in choice["slalom"]["told"]
