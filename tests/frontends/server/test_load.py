"""Many clients at once: everyone is answered, and nobody gets another one's text."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from slalom.api import SteerableModel
from slalom.frontends.server.intake import read_completion
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wire import CompletionBody
from slalom.frontends.server.wishes import Wishes
from tests.frontends.server.conftest import NAME, Serving

WISHES: list[dict[str, Any] | None] = [
    {"keywords": ["soup"], "steps": 8},
    {"keywords": ["rain", "river"], "mode": "all", "steps": 8, "sampler": "dab"},
    {"classifier": "taste", "label": "good", "steps": 8, "tell": False},
    {"avoid": ["the"], "sampler": "best-of-n", "steps": 2},
    None,
]


def asked(number: int) -> dict[str, Any]:
    """Requests of different wishes, lengths, samplers and seeds."""
    return {
        "model": NAME,
        "prompt": ["the food", "we liked", "a day by the river"][number % 3],
        "max_tokens": 4 + number % 5,
        "seed": number % 20,
        "temperature": None if number % 5 < 4 else 0.8,
        "slalom": WISHES[number % 5],
    }


def test_200_requests_of_16_clients_with_a_queue_of_8_are_all_answered_with_their_own_texts(
    serving: Serving, chatty: SteerableModel, settings: ServeSpec
) -> None:
    def ask_once(number: int) -> httpx.Response:
        """One request; who is refused lets the others go first."""
        answer = client.post("/v1/completions", json=asked(number))
        if answer.status_code == 429:
            time.sleep(0.3)
        return answer

    with serving(queue=8) as url, httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask_once, range(200)))
        assert client.get("/metrics").text.count('status="5') == 0
    assert {answer.status_code for answer in answers} <= {200, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(answer.headers["retry-after"] == "1" for answer in refused)
    assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)
    taken = [(number, answer.json()) for number, answer in enumerate(answers) if answer.status_code == 200]
    assert len(taken) >= 20
    wishes = Wishes(settings)
    for number, answer in taken:
        ask = read_completion(CompletionBody.model_validate(asked(number)), NAME, settings)
        (row,) = chatty.steer(ask.prompts, wishes.constraint(ask.spec), **ask.spec.options()).rows
        assert answer["choices"][0]["text"] == row.text


def test_a_client_that_tries_again_gets_every_text(serving: Serving) -> None:
    from openai import OpenAI

    with serving(queue=2) as url, ThreadPoolExecutor(6) as pool:
        official = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=20)
        bodies = [dict(asked(5 * number)) for number in range(12)]
        extra = [{"slalom": body.pop("slalom")} for body in bodies]
        found = list(
            pool.map(
                lambda pair: official.completions.create(**pair[0], extra_body=pair[1]), zip(bodies, extra, strict=True)
            )
        )
    assert all(out.choices[0].text for out in found)
