"""What a client sees while texts are written: chunks, comment lines, live drafts, and an end if it goes away."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from tests.frontends.server.conftest import LOCALHOST, NAME, Serving

SOUP = {"keywords": ["soup"], "steps": 12}
ASK = {"model": NAME, "prompt": "the food", "max_tokens": 6, "slalom": SOUP}
ENDLESS = {
    "model": NAME,
    "prompt": "the food",
    "max_tokens": 40,
    "slalom": {"keywords": ["xylophone"], "steps": 200, "sampler": "dab"},
}


def events(answer: Any) -> list[tuple[str, dict[str, Any]]]:
    """The named events of a stream."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.strip().split("\n\n"):
        name, content = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(content.removeprefix("data: "))))
    return found


def metric(url: str, name: str) -> float:
    """One figure of a server."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def wait_for(url: str, name: str, value: float) -> None:
    """Until a figure has this value."""
    deadline = time.monotonic() + 20
    while metric(url, name) != value:
        assert time.monotonic() < deadline, f"{name} is {metric(url, name)}"
        time.sleep(0.02)


@pytest.mark.parametrize("chat", [False, True])
def test_a_stream_is_chunks_and_comment_lines_and_ends_with_done(client: TestClient, chat: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = dict(ASK, n=2, max_tokens=12)
    if chat:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    whole = client.post(path, json=body).json()
    streamed = client.post(path, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *blocks, last = streamed.text.strip().split("\n\n")
    assert last == "data: [DONE]"
    comments = [block for block in blocks if block.startswith(": ")]
    assert comments
    assert all(comment.startswith(": draft ") and ", best " in comment for comment in comments)
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks if block not in comments]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    texts, ends = ["", ""], [None, None]
    for chunk in chunks[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "") if chat else choice["text"]
        if choice["finish_reason"]:
            ends[choice["index"]] = (choice["finish_reason"], choice["slalom"]["settings"])
        assert chunk["usage"] is None
    assert texts == [one["message"]["content"] if chat else one["text"] for one in whole["choices"]]
    assert ends == [(one["finish_reason"], one["slalom"]["settings"]) for one in whole["choices"]]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]


def test_what_is_wrong_with_a_stream_has_its_own_status(client: TestClient) -> None:
    for path in ("/v1/completions", "/v1/steer/stream"):
        answer = client.post(path, json=ASK | {"prompt": " ", "stream": True})
        assert answer.status_code == 400
        assert "the prompt is empty" in answer.json()["error"]["message"]


def test_live_drafts_show_tokens_changes_moves_and_the_best_so_far(client: TestClient, chatty: SteerableModel) -> None:
    found = events(client.post("/v1/steer/stream", json=ASK | {"n": 2, "compare": True}))
    assert found[0][0] == "start"
    assert found[-1] == ("done", {})
    start = found[0][1]
    assert start["model"] == NAME
    assert start["told"].startswith("Write a short text")
    assert start["settings"]["slalom"]["keywords"] == ["soup"]
    drafts = [content for name, content in found if name == "draft"]
    assert {draft["index"] for draft in drafts} == {0, 1}
    before: dict[int, list[str]] = {}
    for draft in drafts:
        assert set(draft) >= {"index", "draft", "block", "tokens", "text", "score", "satisfied", "perplexity", "best"}
        assert set(draft["best"]) == {"text", "score", "satisfied", "perplexity"}
        assert "".join(token["text"] for token in draft["tokens"]) == draft["text"]
        old = before.get(draft["index"])
        first = old is None
        assert not (first and any(token["changed"] or token["bias"] for token in draft["tokens"]))
        if not first:
            for token, was in zip(draft["tokens"], old, strict=True):
                assert token["changed"] or token["text"] == was or not was.isascii()  # half a character
        before[draft["index"]] = [token["text"] for token in draft["tokens"]]
    assert any(token["bias"] for draft in drafts for token in draft["tokens"])
    expected = chatty.steer("the food", Keywords(["soup"]), length=6, steps=12, samples=2, compare=True).rows
    texts = sorted((content for name, content in found if name == "text"), key=lambda text: text["index"])
    keys = {"index", "prompt", "text", "constraints", "satisfied", "score", "perplexity", "told_perplexity", "steps"}
    keys |= {"seed", "told", "unsteered", "unsteered_perplexity"}
    for text, row in zip(texts, expected, strict=True):
        assert set(text) == keys
        assert (text["text"], text["unsteered"], text["seed"]) == (row.text, row.unsteered, row.seed)
        assert set(text["constraints"][0]) == {"name", "score", "probability", "satisfied"}


def test_dab_shows_a_bias_token_under_every_position(client: TestClient) -> None:
    body = ASK | {"slalom": SOUP | {"sampler": "dab", "steps": 3}}
    first, *others = [
        content for name, content in events(client.post("/v1/steer/stream", json=body)) if name == "draft"
    ]
    assert all(token["bias"] is None for token in first["tokens"])
    assert all(token["bias"] is not None for draft in others for token in draft["tokens"])


def test_a_sampler_without_bias_tokens_shows_none(client: TestClient) -> None:
    found = events(client.post("/v1/steer/stream", json=ASK | {"slalom": SOUP | {"sampler": "bolt", "steps": 2}}))
    assert not any(token["bias"] for name, draft in found if name == "draft" for token in draft["tokens"])


def test_the_blocks_of_a_long_text_are_shown_one_after_the_other(client: TestClient) -> None:
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "the food"}],
        "max_completion_tokens": 60,
        "slalom": SOUP,
    }
    found = events(client.post("/v1/steer/stream", json=body))
    drafts = [content for name, content in found if name == "draft"]
    (text,) = [content for name, content in found if name == "text"]
    assert [draft["block"] for draft in drafts] == sorted(draft["block"] for draft in drafts)
    assert drafts[-1]["block"] > 0
    assert text["text"].startswith(drafts[-1]["begun"])


@pytest.mark.parametrize(
    "changed",
    [{"prompt": None}, {"messages": [{"role": "user", "content": "hi"}]}, {"stream": False}, {"prompt": ["a"]}],
    ids=str,
)
def test_drafts_are_of_one_prompt_or_chat(client: TestClient, changed: dict[str, Any]) -> None:
    assert client.post("/v1/steer/stream", json=ASK | changed).status_code == 400


def test_a_request_that_takes_too_long_is_stopped(chatty: SteerableModel) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, max_seconds=1.5)), LOCALHOST) as client:
        answer = client.post("/v1/completions", json=ENDLESS)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "timeout"
        assert answer.headers["x-should-retry"] == "false"
        *_, (name, content) = events(client.post("/v1/steer/stream", json=ENDLESS))
        assert (name, content["error"]["code"]) == ("error", "timeout")
        streamed = client.post("/v1/completions", json=ENDLESS | {"stream": True}).text
        assert "[DONE]" not in streamed
        assert json.loads(streamed.strip().split("\n\n")[-1].removeprefix("data: "))["error"]["code"] == "timeout"


@pytest.mark.parametrize(
    ("path", "stream"), [("/v1/completions", False), ("/v1/completions", True), ("/v1/steer/stream", True)]
)
def test_a_client_that_goes_away_stops_its_work(serving: Serving, path: str, stream: bool) -> None:
    with serving() as url:
        if stream:
            with httpx.stream("POST", f"{url}{path}", json=ENDLESS | {"stream": True}, timeout=20) as answer:
                lines = answer.iter_lines()
                next(lines)
                wait_for(url, "slalom_rows", 1)
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(f"{url}{path}", json=ENDLESS, timeout=0.7)
        wait_for(url, "slalom_rows", 0)
        wait_for(url, "slalom_queue", 0)
        drafts = metric(url, "slalom_drafts_total")
        assert drafts < 100
        time.sleep(0.5)
        assert metric(url, "slalom_drafts_total") == drafts


STREAMS = ("/v1/completions", "/v1/chat/completions", "/v1/steer/stream")


def endless_stream(path: str) -> dict[str, Any]:
    """A stream that takes long, for a route."""
    if "chat" not in path:
        return ENDLESS | {"stream": True}
    body = {name: value for name, value in ENDLESS.items() if name != "prompt"}
    return body | {"stream": True, "messages": [{"role": "user", "content": "the food"}]}


def post_and_leave(app: FastAPI, path: str, body: dict[str, Any], read: bool = False, seconds: float = 0.2) -> None:
    """What a server does with a request whose client stays so long and reads nothing, or the beginning of it."""

    async def run() -> None:
        first, leaving = asyncio.Event(), asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, leaving.set)

        async def receive() -> dict[str, Any]:
            if not first.is_set():
                first.set()
                return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
            await leaving.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            if not read:
                await asyncio.Event().wait()

        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
        await app(scope, receive, send)  # type: ignore[arg-type]

    asyncio.run(run())


@contextmanager
def working(app: FastAPI) -> Iterator[None]:
    """While open, the app's worker works."""
    app.state.service.worker.start()
    try:
        yield
    finally:
        app.state.service.worker.close()


def queue_empties(app: FastAPI, within: float = 3.0) -> bool:
    """Whether all jobs leave soon."""
    deadline = time.monotonic() + within
    while b"slalom_queue 0.0" not in app.state.service.metrics.text():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("path", STREAMS)
def test_a_client_that_leaves_before_its_job_begins_is_no_error_of_the_server(
    chatty: SteerableModel, path: str
) -> None:
    app = make_app(chatty, ServeSpec(shipped=False))
    post_and_leave(app, path, endless_stream(path), read=True)  # the worker has not begun
    assert f'slalom_requests_total{{endpoint="{path}",status="499"}} 1.0' in app.state.service.metrics.text().decode()
    with working(app):
        assert queue_empties(app)
    assert b"slalom_drafts_total 0.0" in app.state.service.metrics.text()


@pytest.mark.parametrize("path", STREAMS)
def test_a_client_that_leaves_before_it_reads_a_line_stops_its_work(chatty: SteerableModel, path: str) -> None:
    app = make_app(chatty, ServeSpec(shipped=False))
    with working(app):
        post_and_leave(app, path, endless_stream(path), seconds=0.7)
        assert queue_empties(app)


def test_the_work_for_a_client_that_never_reads_ends_with_its_time(chatty: SteerableModel) -> None:
    app = make_app(chatty, ServeSpec(shipped=False, max_seconds=0.5))
    with working(app):
        started = time.monotonic()
        post_and_leave(app, "/v1/steer/stream", endless_stream("/v1/steer/stream"), seconds=2.5)
        assert time.monotonic() - started > 2
        assert queue_empties(app, within=0.0)


def test_an_error_that_nobody_handles_is_counted_as_500(
    chatty: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("secret")

    with TestClient(make_app(chatty, ServeSpec(shipped=False)), LOCALHOST, raise_server_exceptions=False) as client:
        monkeypatch.setattr("slalom.frontends.server.app.Service.watch", fail)
        for path in STREAMS:
            assert client.post(path, json=endless_stream(path)).status_code == 500
            assert f'slalom_requests_total{{endpoint="{path}",status="500"}} 1.0' in client.get("/metrics").text


def test_a_client_that_never_reads_is_left_soon_after_its_time(
    chatty: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slalom.frontends.server.streaming.UNREAD", 0.5)
    app = make_app(chatty, ServeSpec(shipped=False, max_seconds=0.5))
    with working(app):
        started = time.monotonic()
        post_and_leave(app, "/v1/steer/stream", endless_stream("/v1/steer/stream"), seconds=60)
        assert time.monotonic() - started < 30
