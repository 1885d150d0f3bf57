"""What every request passes before its route: the count of it, the key or the host, and the size of its body."""

from __future__ import annotations

import hmac
import logging
import re
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from slalom.frontends.server.errors import ApiError
from slalom.frontends.server.metrics import Metrics

OPEN = ("/health", "/")  # what needs no key: whether the server lives, and the page, which holds nothing
OPEN_FOLDER = "/page/"
HOST = re.compile(r"(\[[^]]*\]|[^:]*)(?::\d*)?")  # a name or address, and perhaps a port
LOCAL = ("localhost", "127.0.0.1", "::1")
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
logger = logging.getLogger("slalom.server")


class Counted:
    """Counts and times every answer, and writes a line about it that tells nothing of what was said."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:  # nobody handled it: it is answered 500 further out, or breaks off what was begun
            status = 500
            raise
        finally:
            seconds = time.perf_counter() - started
            endpoint = getattr(scope.get("route"), "path", "other")
            said = str(status) if status else "gone"  # cancelled: the client left, or the server ends
            self._metrics.requests.labels(endpoint, said).inc()
            self._metrics.seconds.labels(endpoint).observe(seconds)
            logger.info("%s %s %s %.3f s", scope["method"], endpoint, said, seconds)


class Local:
    """Refuses whoever means another machine: a page of another site, that is, whose name was pointed at this one.

    A browser lets such a page read the answers, for to it they are the site's own (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._hosts = app, {*LOCAL, host.lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on. Who says no host is no browser."""
        if scope["type"] != "http" or (host := Request(scope).headers.get("host")) is None:
            await self._app(scope, receive, send)
            return
        named = HOST.fullmatch(host.lower())
        if named and named[1].strip("[]") in self._hosts:
            await self._app(scope, receive, send)
            return
        message = f"the request is for {host!r}; without a key this server answers to {', '.join(sorted(self._hosts))}"
        await ApiError(403, message, code="unknown_host").response(scope, receive, send)


class Guarded:
    """Refuses whoever does not bring the key, before anything of the body is read."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http" or _is_open(scope["path"]) or self._knows(scope):
            await self._app(scope, receive, send)
            return
        message = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
        error = ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        await error.response(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        kind, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key)


class Bounded:
    """Refuses a body that is too large, by what it says of itself or once it has become so."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        said = Request(scope).headers.get("content-length", "")
        if said.isdigit() and int(said) > self._most:
            await self._error().response(scope, receive, send)
            return
        count = 0

        async def counting() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count > self._most:
                raise self._error()
            return message

        await self._app(scope, counting, send)

    def _error(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self._most} bytes", code="limit_exceeded")


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDER)
