"""Measure a running server under load: texts a second, latency and memory, by the number of clients at once.

    slalom serve &
    python examples/13_server_load.py http://127.0.0.1:8000 --clients 1,8 --requests 40

Every number of clients gets as many completions of different wishes, lengths and prompts, with seeds that were not used
before. Needs httpx. A key is taken from SLALOM_API_KEY.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.parse import urlparse

import httpx

PROMPTS = ("The soup", "The weather today", "My neighbour", "Last summer we", "The new phone", "In the morning")
LENGTHS = (10, 20, 30, 40)
WISHES: tuple[dict[str, Any], ...] = (
    {"sentiment": "negative"},
    {"keywords": ["spoon", "rain"]},
    {"sentiment": "positive", "avoid": ["good"]},
    {"topic": "space"},
    {"detoxify": True},
    {},
)
MOST_CLIENTS, MOST_REQUESTS = 64, 10_000


class Answer(NamedTuple):
    """What one request came to."""

    status: str  # of HTTP, or what went wrong on the way
    seconds: float


class Load(NamedTuple):
    """One number of clients."""

    clients: int
    answers: list[Answer]
    seconds: float  # from the first request to the last answer
    before: float | None  # the server's memory in bytes, if it tells
    after: float | None


def main() -> None:
    """Measure, and print a line for every number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="where the server listens")
    parser.add_argument("--clients", default="1,8", help=f"clients at once, comma-separated, {MOST_CLIENTS} at most")
    parser.add_argument("--requests", type=int, default=40, help=f"of each number of clients, {MOST_REQUESTS} at most")
    parser.add_argument("--seconds", type=float, default=300.0, help="that each number of clients may take")
    parser.add_argument("--elsewhere", action="store_true", help="the server may be on another machine")
    parser.add_argument("--quick", action="store_true", help="four requests")
    options = parser.parse_args()
    numbers = [int(number) for number in options.clients.split(",")]
    count = 4 if options.quick else options.requests
    if not (all(0 < number <= MOST_CLIENTS for number in numbers) and 0 < count <= MOST_REQUESTS):
        parser.error(f"give 1 to {MOST_CLIENTS} clients and 1 to {MOST_REQUESTS} requests")
    if not (options.elsewhere or is_loopback(options.url)):
        parser.error(f"{options.url} is not on this machine; give --elsewhere if you may load that server")
    key = os.environ.get("SLALOM_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=MOST_CLIENTS)
    with httpx.Client(base_url=options.url, headers=headers, limits=limits) as client:
        try:
            props = client.get("/props").raise_for_status().json()
        except httpx.HTTPError as error:
            print(f"no server answers at {options.url} ({error}); start one with slalom serve")
            return
        run(client, props, numbers, count, options.seconds)


def run(client: httpx.Client, props: dict[str, Any], numbers: list[int], count: int, seconds: float) -> None:
    """A request of each wish to warm up, then every number of clients in turn."""
    bodies = requests_for(props, len(WISHES) + count * len(numbers))
    for body in bodies[: len(WISHES)]:
        ask(client, body, time.monotonic() + seconds)
    loads: list[Load] = []
    for turn, clients in enumerate(numbers):
        start = len(WISHES) + turn * count
        loads.append(measure(client, bodies[start : start + count], clients, seconds))
        print(summary(loads[-1], loads), flush=True)


def requests_for(props: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Bodies that differ in wish, length, prompt and seed, of wishes that this server offers."""
    offered = [wish for wish in WISHES if set(wish) <= set(props["wishes"])]
    longest = int(props["limits"]["max_tokens"])
    return [
        {
            "model": props["model"],
            "prompt": PROMPTS[number % len(PROMPTS)],
            "max_tokens": min(LENGTHS[number % len(LENGTHS)], longest),
            "seed": number,
            "slalom": offered[number % len(offered)],
        }
        for number in range(count)
    ]


def measure(client: httpx.Client, bodies: list[dict[str, Any]], clients: int, seconds: float) -> Load:
    """All requests from so many clients, each sending its next one when it has an answer; none after the time."""
    before, started = memory(client), time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        found = pool.map(lambda body: ask(client, body, started + seconds), bodies)
        answers = [answer for answer in found if answer is not None]
    return Load(clients, answers, time.monotonic() - started, before, memory(client))


def ask(client: httpx.Client, body: dict[str, Any], deadline: float) -> Answer | None:
    """One request, if there is time; who is refused waits before it goes on."""
    started = time.monotonic()
    if started >= deadline:
        return None
    try:
        answer = client.post("/v1/completions", json=body, timeout=deadline - started)
    except httpx.TimeoutException:
        return Answer("too late", time.monotonic() - started)
    except httpx.TransportError as error:
        return Answer(type(error).__name__, time.monotonic() - started)
    taken = time.monotonic() - started
    if answer.status_code == 429:
        time.sleep(max(0.0, min(float(answer.headers.get("Retry-After", 1)), deadline - time.monotonic())))
    return Answer(str(answer.status_code), taken)


def memory(client: httpx.Client) -> float | None:
    """The server's resident memory in bytes, where its metrics have it."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("process_resident_memory_bytes "):
            return float(line.split()[1])
    return None


def summary(load: Load, loads: list[Load]) -> str:
    """One number of clients in a line; what could not be measured is missing."""
    statuses = sorted(Counter(answer.status for answer in load.answers).items())
    times = [answer.seconds for answer in load.answers if answer.status == "200"]
    alone = next((texts_a_second(one) for one in loads if one.clients == 1), 0.0)
    parts = [
        f"clients {load.clients}",
        f"requests {len(load.answers)} ({', '.join(f'{status}: {count}' for status, count in statuses)})",
        f"{texts_a_second(load):.2f} texts/s",
    ]
    if alone:
        parts.append(f"{texts_a_second(load) / alone:.2f} x one client")
    if times:
        late = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
        parts += [f"median {median(times):.2f} s", f"p95 {late:.2f} s"]
    if load.before is not None and load.after is not None:
        parts.append(f"memory {load.before / 1e6:.0f} → {load.after / 1e6:.0f} MB")
    return " · ".join(parts)


def texts_a_second(load: Load) -> float:
    """Finished texts over the time of all."""
    return sum(answer.status == "200" for answer in load.answers) / load.seconds


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own."""
    host = urlparse(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    main()
