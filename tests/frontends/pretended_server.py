"""A server that only pretends to write: the page's counterpart where a test must know every draft beforehand."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles

import slalom.frontends

PAGE = Path(slalom.frontends.__file__).parent / "page"
DRAFTS = [
    (" was good", -2.0, " bad"),
    (" was <b>", 0.5, None),
    (" was cold soup", 3.0, " cold"),
    (" was so", 1.0, None),
]
PROPS: dict[str, Any] = {
    "model": "tiny",
    "engine": "torch",
    "chat": True,
    "defaults": {"sampler": "climb", "preset": "default", "max_tokens": 20},
    "fields": {},
    "wishes": [
        *("sentiment", "keywords", "detoxify", "topic", "avoid", "classifier", "similar", "whole_sentences"),
    ],
    "samplers": [{"name": "climb", "knobs": [{"name": "width", "default": 4, "help": "moves"}]}, {"name": "dab"}],
    "presets": [{"sampler": "climb", "name": "default"}, {"sampler": "climb", "name": "thorough"}],
    "topics": ["space"],
    "classifiers": [{"name": "tone", "labels": ["friendly", "cold"]}],
    "limits": {"max_tokens": 64, "max_texts": 4, "max_steps": 50},
}


class PretendedServer:
    """What was asked of it, and how fast it answers."""

    def __init__(self) -> None:
        self.address = ""
        self.bodies: list[dict[str, Any]] = []
        self.pause = 0.0  # seconds before each draft
        self.left = threading.Event()  # a client went away before the end

    def app(self) -> FastAPI:
        """The page, /props, and a stream of the same drafts for everybody."""
        app = FastAPI()
        app.get("/")(lambda: FileResponse(PAGE / "index.html"))
        app.get("/props")(lambda: PROPS)
        app.mount("/page", StaticFiles(directory=PAGE))

        @app.post("/v1/steer/stream")
        async def stream(request: Request) -> StreamingResponse:
            self.bodies.append(await request.json())
            return StreamingResponse(self._events(self.bodies[-1]), media_type="text/event-stream")

        return app

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[str]:
        finished = False
        try:
            yield event("start", {"id": "1", "model": "tiny", "settings": {}, "told": None})
            for number, _ in enumerate(DRAFTS):
                await asyncio.sleep(self.pause)
                for index in range(body.get("n", 1)):
                    yield event("draft", {"index": index} | draft(number))
            for index in range(body.get("n", 1)):
                yield event("text", {"index": index} | text(body, index))
            yield event("done", {})
            finished = True
        finally:
            if not finished:
                self.left.set()


def event(name: str, data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def judged(number: int) -> dict[str, Any]:
    """A draft's text and how good it is."""
    text, score, _ = DRAFTS[number]
    return {"text": text, "score": score, "satisfied": score > 0, "perplexity": 10.0 + number}


def draft(number: int) -> dict[str, Any]:
    """A draft as the stream has it, four written at every step."""
    words, before = ([f" {word}" for word in DRAFTS[max(0, n)][0].split()] for n in (number, number - 1))
    bias = DRAFTS[number][2]
    tokens = [
        {"text": word, "changed": number > 0 and (place >= len(before) or before[place] != word), "bias": bias}
        for place, word in enumerate(words)
    ]
    best = max(range(number + 1), key=lambda one: DRAFTS[one][1])
    return {"draft": 4 * (number + 1), "block": 0, "tokens": tokens, "best": judged(best)} | judged(number)


def text(body: dict[str, Any], index: int) -> dict[str, Any]:
    """The finished text."""
    parts = [
        {"name": "sentiment:negative", "score": 3.0, "probability": 0.953, "satisfied": True},
        {"name": "keywords:any(soup)", "score": 1.0, "probability": None, "satisfied": False},
    ]
    asked = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    return judged(2) | {
        "prompt": asked,
        "constraints": parts,
        "told_perplexity": None,
        "steps": 16,
        "seed": body.get("seed", 0) + index,
        "told": None,
        "unsteered": " was <i>fine</i>",
        "unsteered_perplexity": 4.5,
    }


@contextmanager
def served(app: Any) -> Iterator[str]:
    """An ASGI application on a free port of this machine, while open; its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        threading.Event().wait(0.02)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
