"""A job's events to what a client sees as they come: a watch that stops the work when nobody waits, and SSE lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from slalom.frontends.server.answers import Head, how, settings_of, steered_text, usage
from slalom.frontends.server.errors import ApiError, late
from slalom.frontends.server.intake import Ask
from slalom.frontends.server.worker import Drafted, Event, Failed, Progressed, Started, Worker, Written

EVENT_STREAM = "text/event-stream"
UNREAD = 10.0  # seconds after a request's time that a client may take to read what there is


class ClientGoneError(ApiError):
    """Nobody waits for the answer any more; its status is for the log and the metrics alone."""

    def __init__(self) -> None:
        super().__init__(499, "the client has gone")


class Watch:
    """The events of one request as they come. Closing it stops what is left of the work."""

    def __init__(self, worker: Worker, ask: Ask, request: Request, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.ask = ask
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._worker, self._seconds = worker, seconds
        self.deadline = loop.time() + seconds

        def tell(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(self._events.put_nowait, event)

        self._job = worker.submit(ask, tell)
        self._end = loop.call_at(self.deadline, worker.cancel, self._job)  # even if nobody asks for the next event
        self._gone = asyncio.create_task(_disconnected(request))

    async def start(self) -> list[Any]:
        """Wait until the request is understood; its rows."""
        event = await self.next()
        assert isinstance(event, Started)
        return event.requests

    async def next(self) -> Event:
        """The next event; an ApiError if the request failed or took too long."""
        coming = asyncio.create_task(self._events.get())
        left = max(0.0, self.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait({coming, self._gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not coming.done():
                coming.cancel()
        if coming.done() and not coming.cancelled():
            event = coming.result()
            if isinstance(event, Failed):
                raise event.error
            return event
        if self._gone.done():
            raise ClientGoneError()
        raise late(self._seconds)

    async def texts(self, count: int) -> AsyncIterator[Event]:
        """Every event until so many texts are written."""
        while count:
            event = await self.next()
            count -= isinstance(event, Written)
            yield event

    def close(self) -> None:
        """Stop what is left of the work."""
        self._end.cancel()
        self._gone.cancel()
        self._worker.cancel(self._job)


async def _disconnected(request: Request) -> None:
    """Wait until the client closes the connection; the body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def collected(watch: Watch) -> list[Written]:
    """All texts of a request, in order."""
    with contextlib.closing(watch):
        rows = await watch.start()
        found = [event async for event in watch.texts(len(rows)) if isinstance(event, Written)]
    return sorted(found, key=lambda one: one.number)


async def completion_stream(watch: Watch, head: Head, count_tokens: bool) -> StreamingResponse:
    """A completion as chunks."""
    return await _chunks(watch, head, "text_completion", count_tokens, chat=False)


async def chat_stream(watch: Watch, head: Head, count_tokens: bool) -> StreamingResponse:
    """A chat's answer as chunks."""
    return await _chunks(watch, head, "chat.completion.chunk", count_tokens, chat=True)


async def _chunks(watch: Watch, head: Head, kind: str, count_tokens: bool, chat: bool) -> StreamingResponse:
    """The texts as chunks of a word each; while they are written, comment lines say how far they are."""
    rows = await _started(watch)

    def chunk(choices: list[dict[str, Any]], **more: Any) -> str:
        whole = {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": choices}
        return data(whole | ({"usage": None} if count_tokens else {}) | more)

    def pieces(one: Written) -> list[dict[str, Any]]:
        """One text as the choices of its chunks: words, then how it ended and how it came to be."""
        words = re.findall(r"\s*\S+|\s+$", one.text.text)
        if chat:
            turns = [{"delta": {"role": "assistant", "content": ""}}, *({"delta": {"content": word}} for word in words)]
            last: dict[str, Any] = {"delta": {}}
        else:
            turns, last = [{"text": word} for word in words], {"text": ""}
        ending = {"finish_reason": one.finish_reason, "slalom": how(one, watch.ask.spec).model_dump()}
        common = {"index": one.number, "logprobs": None, "finish_reason": None}
        return [common | turn for turn in turns] + [common | last | ending]

    async def lines() -> AsyncIterator[str]:
        written: list[Written] = []
        try:
            async for event in watch.texts(len(rows)):
                if isinstance(event, Progressed):
                    yield f": draft {event.drafts}, best {event.best:.2f}\n\n"
                elif isinstance(event, Written):
                    written.append(event)
                    for piece in pieces(event):
                        yield chunk([piece])
        except ApiError as error:
            yield data(error.body.model_dump())
            return
        if count_tokens:
            yield chunk([], usage=usage(written).model_dump())
        yield "data: [DONE]\n\n"

    return WatchedStream(watch, lines())


async def draft_stream(watch: Watch, head: Head) -> StreamingResponse:
    """Every draft of a request's texts, and the texts, as named events."""
    rows = await _started(watch)
    first = rows[0]
    start = {"id": head.id, "model": head.model, "settings": settings_of(first, watch.ask.spec), "told": first.told}
    start["settings"]["n"] = len(rows)

    async def lines() -> AsyncIterator[str]:
        yield event_lines("start", start)
        try:
            async for event in watch.texts(len(rows)):
                if isinstance(event, Drafted):
                    yield event_lines("draft", event.draft)
                elif isinstance(event, Written):
                    yield event_lines("text", steered_text(event))
        except ApiError as error:
            yield event_lines("error", error.body.model_dump())
            return
        yield event_lines("done", {})

    return WatchedStream(watch, lines())


async def _started(watch: Watch) -> list[Any]:
    """Wait until the request is understood, so that what is wrong with it gets its own status."""
    try:
        return await watch.start()
    except BaseException:
        watch.close()
        raise


class WatchedStream(StreamingResponse):
    """A stream that stops its work when it ends, even if nobody ever read a line of it."""

    def __init__(self, watch: Watch, lines: AsyncIterator[str]) -> None:
        super().__init__(lines, media_type=EVENT_STREAM, headers={"Cache-Control": "no-store"})
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a client that reads nothing any more is not waited for."""
        with contextlib.closing(self._watch), contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._watch.deadline + UNREAD):
                await super().__call__(scope, receive, send)


def data(content: dict[str, Any]) -> str:
    """One event without a name."""
    return f"data: {json.dumps(content, ensure_ascii=False, allow_nan=False)}\n\n"


def event_lines(name: str, content: dict[str, Any]) -> str:
    """One event with a name."""
    return f"event: {name}\n{data(content)}"
