"""An LM and an operator's settings to an HTTP application: OpenAI's routes, live drafts, and what there is to know."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST

import slalom
from slalom.api import SteerableModel
from slalom.frontends.server import answers, intake, streaming
from slalom.frontends.server.errors import ApiError, ErrorBody, add_error_handlers
from slalom.frontends.server.intake import Ask
from slalom.frontends.server.metrics import Metrics
from slalom.frontends.server.middleware import Bounded, Counted, Guarded, Local
from slalom.frontends.server.openapi import document
from slalom.frontends.server.props import describe_server
from slalom.frontends.server.settings import ServeSpec, is_loopback
from slalom.frontends.server.streaming import Watch
from slalom.frontends.server.wire import ChatBody, CompletionBody, SteerBody
from slalom.frontends.server.wishes import Wishes
from slalom.frontends.server.worker import Worker

PAGE = Path(__file__).parent.parent / "page"
PAGE_POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": what}
    for status, what in {
        400: "The request is wrong or asks for too much.",
        401: "The API key is missing or wrong.",
        403: "The request is for another host.",
        404: "There is no such model.",
        413: "The body is too large.",
        429: "The queue is full: try again after Retry-After seconds.",
        500: "Something went wrong in the server.",
        503: "The server is shutting down, or does not get on.",
        504: "The request took too long and was stopped.",
    }.items()
}
CHUNKS, NAMED = (
    {streaming.EVENT_STREAM: {"itemSchema": {"type": "object", "properties": fields, "required": list(fields)}}}
    for fields in (
        {"data": {"type": "string"}},
        {"event": {"enum": ["start", "draft", "text", "error", "done"]}, "data": {"type": "string"}},
    )
)
logger = logging.getLogger("slalom.server")


class Service:
    """The LM with its worker, and what requests may ask of it."""

    def __init__(self, lm: SteerableModel, settings: ServeSpec) -> None:
        self.settings, self.metrics = settings, Metrics()
        self.name = settings.served_name(lm.name)
        self.wishes = Wishes(settings)
        self.wishes.prepare(lm.device)
        self.worker = Worker(lm, settings, self.wishes, self.metrics)
        self.props = describe_server(lm, self.name, settings, self.wishes)

    def watch(self, ask: Ask, request: Request, user: str | None) -> Watch:
        """Begin what a request asks for."""
        if user is not None:
            logger.info("user %r", user)
        if self.settings.log_prompts:
            logger.info("prompts %r", ask.prompts)
        return Watch(self.worker, ask, request, self.settings.max_seconds)


def start_log() -> None:
    """Let this process write the server's lines: one a request, and with log_prompts what was said."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)


def make_app(lm: SteerableModel, settings: ServeSpec) -> FastAPI:
    """The application; its worker starts and ends with it."""
    service = Service(lm, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.worker.start()
        yield
        service.worker.close()

    app = FastAPI(
        title="Slalom",
        description="Steered texts, by OpenAI's API and an object of ours, `slalom`.",
        version=slalom.__version__,
        docs_url=None,  # the usual documentation pages load scripts from other hosts
        redoc_url=None,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    _add_texts(app, service)
    _add_facts(app, service)
    _add_page(app)
    app.add_middleware(Bounded, most=settings.max_body)
    if settings.api_key:
        app.add_middleware(Guarded, key=settings.api_key)
    elif is_loopback(settings.host):
        app.add_middleware(Local, host=settings.host)
    app.add_middleware(Counted, metrics=service.metrics)
    described = document(app, service.name, settings)
    app.openapi = lambda: described  # type: ignore[method-assign]
    app.state.service = service
    return app


def _add_texts(app: FastAPI, service: Service) -> None:
    """The routes that write."""
    settings = service.settings
    both = ERRORS | {200: {"content": CHUNKS, "description": "The texts, or a stream of chunks."}}

    @app.post("/v1/completions", responses=both)
    async def completions(body: CompletionBody, request: Request) -> answers.Completion:
        """Continue prompts."""
        ask = intake.read_completion(body, service.name, settings)
        head, watch = answers.new_head("cmpl", service.name), service.watch(ask, request, body.user)
        if body.stream:
            return await streaming.completion_stream(watch, head, _counts(body))  # type: ignore[return-value]
        return answers.completion(head, ask, await streaming.collected(watch))

    @app.post("/v1/chat/completions", responses=both)
    async def chat_completions(body: ChatBody, request: Request) -> answers.ChatCompletion:
        """Answer a chat."""
        ask = intake.read_chat(body, service.name, settings)
        head, watch = answers.new_head("chatcmpl", service.name), service.watch(ask, request, body.user)
        if body.stream:
            return await streaming.chat_stream(watch, head, _counts(body))  # type: ignore[return-value]
        return answers.chat_completion(head, ask, await streaming.collected(watch))

    @app.post(
        "/v1/steer/stream",
        response_class=StreamingResponse,
        responses=ERRORS | {200: {"content": NAMED, "description": "Named events: start, draft, text, error, done."}},
    )
    async def steer_stream(body: SteerBody, request: Request) -> StreamingResponse:
        """Write texts and show every draft."""
        ask = intake.read_steer(body, service.name, settings)
        head = answers.new_head("steer", service.name)
        return await streaming.draft_stream(service.watch(ask, request, body.user), head)


def _counts(body: CompletionBody | ChatBody) -> bool:
    """Whether a stream ends with the number of tokens."""
    return bool(body.stream_options and body.stream_options.include_usage)


def _add_facts(app: FastAPI, service: Service) -> None:
    """The routes that tell something."""
    card = {"id": service.name, "object": "model", "created": 0, "owned_by": "slalom"}
    known: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (401, 403, 413)}

    @app.get("/v1/models", responses=known)
    async def models() -> dict[str, Any]:
        """The one model there is."""
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{model:path}", responses=known | {404: ERRORS[404]})
    async def model(model: str) -> dict[str, Any]:
        """That model by its name."""
        if model != service.name:
            raise ApiError(
                404, f"there is no model {model!r}; this server has {service.name}", "model", "model_not_found"
            )
        return card

    @app.get("/health", responses={status: ERRORS[status] for status in (403, 503)})
    async def health() -> dict[str, str]:
        """Whether the server works; needs no key."""
        if not service.worker.alive:
            raise ApiError(503, "the worker has stopped", code="not_working")
        if service.worker.stuck:
            message = f"a step has been under way for more than {service.settings.max_seconds:g} seconds"
            raise ApiError(503, message, code="not_working")
        return {"status": "ok"}

    @app.get("/props", responses=known)
    async def props() -> dict[str, Any]:
        """What may be asked of this server: defaults, wishes, samplers and their knobs, limits."""
        return service.props

    @app.get(
        "/metrics",
        response_class=Response,
        responses=known | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_page(app: FastAPI) -> None:
    """The playground page, which loads nothing from anywhere else."""

    class PageFiles(StaticFiles):
        def file_response(self, *args: Any, **kwargs: Any) -> Response:
            response = super().file_response(*args, **kwargs)
            response.headers["Content-Security-Policy"] = PAGE_POLICY
            return response

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        if not (PAGE / "index.html").is_file():
            raise ApiError(404, "this server has no page; its API is described in /openapi.json")
        return FileResponse(PAGE / "index.html", headers={"Content-Security-Policy": PAGE_POLICY})

    if PAGE.is_dir():
        app.mount("/page", PageFiles(directory=PAGE), name="page")
