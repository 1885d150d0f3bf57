"""The OpenAPI document is right: whatever schemathesis makes of it is answered as documented, and never by a 5xx."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.frontends.server.conftest import Serving

CASES = int(os.environ.get("SLALOM_SCHEMA_CASES", "1000"))  # of all that write, right and wrong ones
WRITING = ("/v1/completions", "/v1/chat/completions", "/v1/steer/stream")
TELLING = ("/v1/models", "/v1/models/{model}", "/health", "/props", "/metrics")
KINDS = [(path, mode) for path in WRITING for mode in GenerationMode]
KINDS += [(path, GenerationMode.POSITIVE) for path in TELLING]


@pytest.fixture(scope="module")
def schema(serving: Serving) -> Iterator[schemathesis.BaseSchema]:
    """The document of a server that writes short texts, so that many can be asked for."""
    with serving(max_tokens=6, max_texts=2, max_steps=4) as url:
        yield schemathesis.openapi.from_url(f"{url}/openapi.json")


def make_sensible(body: dict[str, Any]) -> None:
    """Leave out most of what is right by the schema and yet refused, so that more cases are written out."""
    if body.get("messages") is None or body.get("prompt") is not None:
        body.pop("messages", None)
        body["prompt"] = body.get("prompt") or "the food"
    body.pop("max_completion_tokens", None)
    if isinstance(wish := body.get("slalom"), dict):
        for name in ("constraints", "regex", "sentiment", "detoxify", "similar", "classifier", "label", "description"):
            wish.pop(name, None)
        wish |= {"preset": "default", "knobs": {}, "keywords": ["soup"], "weights": {}}


@pytest.mark.parametrize(("path", "mode"), KINDS, ids=str)
def test_every_case_is_answered_as_documented(schema: schemathesis.BaseSchema, path: str, mode: GenerationMode) -> None:
    """What is right by the schema may still be refused (a prompt that is empty, a model that cannot); nothing else."""
    method = "POST" if path in WRITING else "GET"
    seen: Counter[int] = Counter()

    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=math.ceil(CASES / 6),
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def answered(case: schemathesis.Case) -> None:
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            make_sensible(case.body)
        seen[case.call_and_validate(excluded_checks=[positive_data_acceptance]).status_code] += 1

    answered()
    print(path, mode.value, dict(seen))
    assert seen[200] or mode is GenerationMode.NEGATIVE or path == "/v1/models/{model}"
