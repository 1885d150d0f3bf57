"""Many clients at once: everyone is answered, and nobody gets another one's text."""

from __future__ import annotations

import gc
import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import psutil
import pytest

from slalom.api import SteerableModel
from slalom.frontends.server.intake import read_completion
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wire import CompletionBody
from slalom.frontends.server.wishes import Wishes
from tests.frontends.server.conftest import NAME, Serving

EXAMPLE = Path(__file__).parents[3] / "examples" / "13_server_load.py"
WARM_UP = 60  # requests after which all of `asked` have been met
GROWTH = 50e6  # bytes that 200 requests may add
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


def memory() -> int:
    """This process's resident memory, the server's included."""
    gc.collect()
    return psutil.Process().memory_info().rss


def test_200_requests_of_16_clients_with_a_queue_of_8_are_all_answered_with_their_own_texts_in_bounded_memory(
    serving: Serving, chatty: SteerableModel, settings: ServeSpec
) -> None:
    times: list[float] = []  # seconds of requests that got their texts

    def ask_once(number: int) -> httpx.Response:
        """One request; who is refused lets the others go first."""
        began = time.perf_counter()
        answer = client.post("/v1/completions", json=asked(number))
        if answer.status_code == 429:
            time.sleep(0.3)
        else:
            times.append(time.perf_counter() - began)
        return answer

    with serving(queue=8) as url, httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(16) as pool:
        for number in range(WARM_UP):
            assert ask_once(number).status_code == 200
        times.clear()
        before = memory()
        answers = list(pool.map(ask_once, range(200)))
        assert memory() - before < GROWTH
        assert client.get("/metrics").text.count('status="5') == 0
    print(f"texts of 16 clients at a queue of 8: median {median(times):.2f} s, p95 {quantiles(times, n=20)[-1]:.2f} s")
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


def test_the_example_measures_a_server_by_the_number_of_clients(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as url:
        monkeypatch.setattr(sys, "argv", [str(EXAMPLE), url, "--clients", "1,2", "--requests", "3"])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    one, two = capsys.readouterr().out.strip().splitlines()
    assert one.startswith("clients 1 · requests 3 (200: 3) · ")
    assert " texts/s · 1.00 x one client · median " in one
    assert two.startswith("clients 2 · requests 3 (200: 3) · ")
    for line in (one, two):
        assert " x one client · median " in line
        assert " s · p95 " in line
        assert " MB" in line


def test_the_examples_summary_counts_answers_by_status_and_leaves_out_what_it_does_not_know() -> None:
    example = runpy.run_path(str(EXAMPLE))
    answer, load, summary = example["Answer"], example["Load"], example["summary"]
    alone = load(1, [answer("200", 1.0)] * 4, 4.0, None, None)
    crowd = load(8, [*[answer("200", float(number)) for number in range(1, 22)], answer("429", 0.1)], 7.0, 1e8, 2e8)
    nothing = load(2, [answer("too late", 9.0)], 9.0, None, None)
    assert summary(alone, [alone]) == (
        "clients 1 · requests 4 (200: 4) · 1.00 texts/s · 1.00 x one client · median 1.00 s · p95 1.00 s"
    )
    assert summary(crowd, [alone, crowd]) == (
        "clients 8 · requests 22 (200: 21, 429: 1) · 3.00 texts/s · 3.00 x one client"
        " · median 11.00 s · p95 20.00 s · memory 100 → 200 MB"
    )
    assert summary(nothing, [nothing]) == "clients 2 · requests 1 (too late: 1) · 0.00 texts/s"


def test_the_example_sends_nothing_to_other_machines_unless_it_is_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "http://192.0.2.1:8000"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert "192.0.2.1:8000 is not on this machine" in capsys.readouterr().err
