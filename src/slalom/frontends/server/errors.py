"""Whatever goes wrong to an answer in OpenAI's error shape: one sentence, naming the field, the value and the rule."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from slalom.frontends.server.wire import ELSEWHERE, UNSUPPORTED

SHOWN = 80  # characters of a value that a message repeats
TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
UNION_MEMBERS = {"str", "int", "float", "bool", "SlalomBody", "StreamOptions"}  # steps of a location that name no field


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """An error as OpenAI's clients read it."""

    error: ErrorDetail


class ApiError(HTTPException):
    """An error with its HTTP status, the field it is about and a code."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code

    @property
    def body(self) -> ErrorBody:
        """The error as it is sent; characters that are no text are shown by their numbers."""
        kind = TYPES.get(self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error")
        message, param = (
            None if text is None else text.encode("utf-8", "backslashreplace").decode()
            for text in (str(self.detail), self.param)
        )
        return ErrorBody(error=ErrorDetail(message=message or "", type=kind, param=param, code=self.code))

    @property
    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body.model_dump(), self.status_code, self.headers)


def crowded() -> ApiError:
    """Too many requests are waiting or under way."""
    message = "the server is busy: its queue is full; try again in a moment"
    return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def late(seconds: float) -> ApiError:
    """A request took too long. A client need not try again: it would take as long."""
    message = f"the request took longer than {seconds:g} seconds and was stopped; ask for fewer tokens, texts or steps"
    return ApiError(504, message, code="timeout", headers={"x-should-retry": "false"})


def add_error_handlers(app: FastAPI) -> None:
    """Let every error of an app be answered in OpenAI's shape."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return first_error(error.errors()[0]).response

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, ApiError):
            return error.response
        message = f"{request.method} {request.url.path}: {str(error.detail).lower()}"
        return ApiError(error.status_code, message, headers=dict(error.headers or {})).response

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> JSONResponse:
        return ApiError(500, "something went wrong in the server; its log says more", code="internal_error").response


def first_error(found: dict[str, Any]) -> ApiError:
    """The first thing a body does wrong."""
    if found["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {found['ctx']['error']}")
    place = _place(found["loc"][1:], named_last=found["type"] in ("missing", "extra_forbidden"))
    if not place:
        return ApiError(400, "the body must be a JSON object, sent as application/json")
    field, value = ".".join(place), found.get("input")
    if found["type"] == "missing":
        return ApiError(400, f"{field} is missing", field, "missing")
    if found["type"] == "extra_forbidden":
        return ApiError(400, _unknown(place, field), field, "unknown_parameter")
    if place[0] in UNSUPPORTED:
        return ApiError(
            400, f"{field} is {shown(value)}; it is {UNSUPPORTED[place[0]]}", field, "unsupported_parameter"
        )
    message = found["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{field} is {shown(value)}; {message[:1].lower()}{message[1:]}", field, "invalid_value")


def shown(value: Any) -> str:
    """A value as a message repeats it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _unknown(place: list[str], field: str) -> str:
    if place[0] == "slalom" and place[-1] in ELSEWHERE:
        return f"{field} is not said there; {ELSEWHERE[place[-1]]}"
    return f"unknown field {field!r}; /openapi.json lists those there are"


def _place(steps: tuple[str | int, ...], named_last: bool) -> list[str]:
    """Where a body is wrong, without the steps that name no field; the last may be a field of any name."""
    kept = len(steps) - 1 if named_last else None
    return [str(step) for number, step in enumerate(steps) if number == kept or not _is_union_member(step)]


def _is_union_member(step: str | int) -> bool:
    return isinstance(step, str) and (step in UNION_MEMBERS or "[" in step or "-" in step)
