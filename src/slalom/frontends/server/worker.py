"""What requests ask for to their texts: one thread owns the LM and a scheduler that all requests share."""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from slalom.api import SteerableModel, Text
from slalom.decoding import SAMPLERS
from slalom.decoding.sampler import Request, Sampler
from slalom.decoding.scheduler import Finished, RowReport, Scheduler
from slalom.errors import SlalomError
from slalom.frontends.server.drafts import DraftReader
from slalom.frontends.server.errors import ApiError, crowded
from slalom.frontends.server.intake import Ask
from slalom.frontends.server.metrics import Metrics
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wishes import NO_WISH, Wishes, check_knobs

# What a step does to every token so many times: the knob, and the times that the limits were chosen for.
REPEATED = {"rerank": ("top_k", 20), "cold": ("inner", 10), "mucola": ("inner", 10)}
logger = logging.getLogger("slalom.server")


class Started(NamedTuple):
    """A request was understood; its texts are being written."""

    requests: list[Request]


class Progressed(NamedTuple):
    """One more draft of a text, in figures."""

    drafts: int
    best: float  # score


class Drafted(NamedTuple):
    """One more draft of a text."""

    draft: dict[str, Any]  # what /v1/steer/stream sends


class Written(NamedTuple):
    """One text is done."""

    number: int  # which text of the request
    text: Text
    request: Request
    tokens: int  # of the text

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """Why it ends: it is as long as was asked for, or something ended it before."""
        return "length" if self.tokens >= self.request.limits.length else "stop"


class Failed(NamedTuple):
    """Nothing more will come."""

    error: ApiError


Event = Started | Progressed | Drafted | Written | Failed


@dataclass(eq=False)
class Job:
    """One HTTP request's texts."""

    ask: Ask
    tell: Callable[[Event], None]  # called on the worker's thread
    rows: dict[int, int] = field(default_factory=dict)  # ticket → number of the text
    readers: dict[int, DraftReader] = field(default_factory=dict)  # ticket → what its drafts look like


class Worker:
    """The thread that owns the LM. At most `queue` jobs wait or are under way; more are refused."""

    def __init__(self, lm: SteerableModel, settings: ServeSpec, wishes: Wishes, metrics: Metrics) -> None:
        self.lm = lm
        self._settings, self._wishes, self._metrics = settings, wishes, metrics
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: set[Job] = set()
        self._lock = threading.Lock()  # of the set of jobs
        self._scheduler = self._new_scheduler()
        self._owners: dict[int, Job] = {}  # ticket → whose row it is
        self._drafts: dict[int, int] = {}  # ticket → drafts counted so far
        self._closing = False
        self._step_began: float | None = None  # while there is one under way
        self._thread = threading.Thread(target=self._run, name="slalom-worker", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self) -> None:
        """Drop what is under way, and end the thread."""
        self._inbox.put(self._stop)
        self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are being worked on."""
        return self._thread.is_alive() and not self._closing

    @property
    def stuck(self) -> bool:
        """Whether a step has taken longer than a whole request may: nothing can be stopped until it ends."""
        began = self._step_began
        return began is not None and time.monotonic() - began > self._settings.max_seconds

    def submit(self, ask: Ask, tell: Callable[[Event], None]) -> Job:
        """Take a job in; what happens to it is told on the worker's thread. A full queue refuses it."""
        job = Job(ask, tell)
        with self._lock:
            if len(self._jobs) >= self._settings.queue:
                raise crowded()
            self._jobs.add(job)
            self._metrics.queue.set(len(self._jobs))
        self._inbox.put(lambda: self._begin(job))
        return job

    def cancel(self, job: Job) -> None:
        """Stop a job, wherever it is; one that is done is left alone."""
        self._inbox.put(lambda: self._drop(job))

    # What follows runs on the worker's thread alone.

    def _run(self) -> None:
        while not self._closing:
            try:
                self._take_in(block=not self._scheduler.busy)
                if self._scheduler.busy and not self._closing:
                    self._step_began = time.monotonic()
                    self._advance()
            except Exception as error:  # the scheduler fails a bad row alone: this is worse, and no row can be trusted
                self._scheduler = self._new_scheduler()
                for job in list(self._jobs):
                    self._fail_by(job, error)
            finally:
                self._step_began = None

    def _take_in(self, block: bool) -> None:
        """Do what was asked for since the last step; if there is nothing else to do, wait for it."""
        try:
            while True:
                self._inbox.get(block=block)()
                block = False
        except queue.Empty:
            return

    def _stop(self) -> None:
        self._closing = True
        for job in list(self._jobs):
            self._fail(job, ApiError(503, "the server is shutting down", code="shutting_down"))

    def _begin(self, job: Job) -> None:
        """Encode a job's prompts and add its rows."""
        if job not in self._jobs:
            return
        try:
            requests = self._requests(job.ask)
            tickets = [self._scheduler.add(request) for request in requests]
        except Exception as error:
            self._fail_by(job, error)
            return
        job.rows = {ticket: index for index, ticket in enumerate(tickets)}
        job.readers = {ticket: DraftReader(index) for ticket, index in job.rows.items()}
        self._owners |= dict.fromkeys(tickets, job)
        self._metrics.rows.set(len(self._owners))
        job.tell(Started(requests))

    def _requests(self, ask: Ask) -> list[Request]:
        """One request a text, its drafts no more than the limit."""
        check_knobs(ask.spec.sampler, ask.spec.knobs)
        wish = self._wishes.constraint(ask.spec)
        most = self._settings.max_steps
        requests = self.lm.requests(ask.prompts, wish, **ask.spec.options())
        check_work(requests, self._settings)
        return [
            request._replace(settings=replace(request.settings, steps=min(request.settings.steps, most)))
            for request in requests
        ]

    def _advance(self) -> None:
        """One more draft of every row; tell their owners."""
        finished = self._scheduler.step()
        for end in finished:
            if end.error is not None and end.ticket in self._owners:
                self._fail_by(self._owners[end.ticket], end.error)
        self._deliver([end for end in finished if end.error is None])

    def _deliver(self, ends: list[Finished]) -> None:
        """Finished rows to texts, read together."""
        for compare in (False, True):
            some = [end for end in ends if end.ticket in self._owners]
            self._read([end for end in some if self._owners[end.ticket].ask.compare is compare], compare)

    def _read(self, ends: list[Finished], compare: bool) -> None:
        """Read finished rows and hand their texts over. If that fails, every row is tried by itself."""
        try:
            texts = self.lm.texts(ends, compare)
        except Exception as error:
            if len(ends) == 1:
                self._fail_by(self._owners[ends[0].ticket], error)
                return
            for end in ends:
                if end.ticket in self._owners:  # its job may have failed meanwhile
                    self._read([end], compare)
            return
        for end, text in zip(ends, texts, strict=True):
            self._hand_over(end, text)

    def _hand_over(self, end: Finished, text: Text) -> None:
        """Tell a job that one of its texts is done; after the last one it is done itself."""
        assert end.best is not None
        job = self._owners[end.ticket]
        if end.request.constraint is NO_WISH:
            text = replace(text, constraints=[])
        tokens = int(end.best.draft.lengths)
        self._metrics.tokens.inc(tokens)
        index = job.rows.pop(end.ticket)
        self._forget([end.ticket])
        if self._settings.log_prompts:
            logger.info("text %r", text.text)
        if not job.rows:
            self._leave(job)  # first, so that whoever has an answer finds its place in the queue free
        job.tell(Written(index, text, end.request, tokens))

    def _report(self, reports: list[RowReport]) -> None:
        """Called by the scheduler after every step."""
        for report in reports:
            self._metrics.drafts.inc(report.drafts - self._drafts.get(report.ticket, 0))
            self._drafts[report.ticket] = report.drafts
            job = self._owners.get(report.ticket)
            if job is not None and job.ask.drafts:
                job.tell(Drafted(job.readers[report.ticket].read(report)))
            elif job is not None and job.ask.progress:
                job.tell(Progressed(report.drafts, report.best.verdict.score))

    def _fail_by(self, job: Job, error: Exception) -> None:
        self._fail(job, api_error(error, self._settings.log_prompts))

    def _fail(self, job: Job, error: ApiError) -> None:
        if job in self._jobs:
            self._drop(job)
            job.tell(Failed(error))

    def _drop(self, job: Job) -> None:
        """Stop what is left of a job."""
        for ticket in job.rows:
            self._scheduler.cancel(ticket)
        self._forget(job.rows)
        job.rows = {}
        self._leave(job)

    def _forget(self, tickets: Iterable[int]) -> None:
        for ticket in tickets:
            self._owners.pop(ticket, None)
            self._drafts.pop(ticket, None)
        self._metrics.rows.set(len(self._owners))

    def _leave(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
            self._metrics.queue.set(len(self._jobs))

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(self.lm, (self._report,))


def check_work(requests: list[Request], settings: ServeSpec) -> None:
    """Refuse what would make one step too long or too large, for a step that was begun cannot be stopped."""
    sampler = requests[0].settings.sampler
    if _is_cheap(sampler):
        return
    most = settings.max_whole_tokens if sampler.mixes else settings.max_gradient_tokens
    knob, usual = REPEATED.get(sampler.name, ("", 1))
    times = max(1.0, getattr(sampler, knob, usual) / usual)
    tokens = sum(request.limits.length for request in requests)
    if tokens * times > most:
        counted = f", each counted {times:g} times as knobs.{knob} is {usual * times:g}" if times > 1 else ""
        others = ", ".join(name for name, kind in SAMPLERS.items() if _is_cheap(kind))
        message = (
            f"max_tokens times texts is {tokens}{counted}; this server takes at most {most} of {sampler.name}, which "
            f"writes texts as a whole: ask for less, or choose from {others}"
        )
        raise ApiError(400, message, "max_tokens", "limit_exceeded")


def _is_cheap(sampler: Sampler | type[Sampler]) -> bool:
    """Whether a step is short however long the texts are: a block of each, or nothing but the LM's own text."""
    return sampler.blockwise or sampler.name == "none"


def api_error(error: Exception, log_message: bool) -> ApiError:
    """What a request is told of an error: bad input in its own words, anything else not; that goes to the log.

    An error's message may quote a prompt or a text, so the log has it only if it may hold those.
    """
    if isinstance(error, SlalomError):
        return ApiError(400, str(error), None if error.field is None else f"slalom.{error.field}", "invalid_value")
    if isinstance(error, ApiError):
        return error
    if log_message:
        logger.error("a request failed", exc_info=error)
    else:
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("a request failed: %s at\n%s", type(error).__name__, frames)
    return ApiError(500, "the text could not be written; the server's log says more", code="internal_error")
