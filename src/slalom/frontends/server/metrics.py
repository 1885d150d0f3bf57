"""What happens in a server to figures that Prometheus reads."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry()
        ProcessCollector(registry=own)  # memory, CPU time and open files of this process
        labels = ["endpoint", "status"]
        self.requests = Counter("slalom_requests", "Answered requests.", labels, registry=own)
        self.seconds = Histogram(
            "slalom_request_seconds", "From a request to its answer's end.", labels[:1], registry=own, buckets=SECONDS
        )
        self.queue = Gauge("slalom_queue", "Requests that wait or are under way.", registry=own)
        self.rows = Gauge("slalom_rows", "Texts that are being written.", registry=own)
        self.drafts = Counter("slalom_drafts", "Drafts written.", registry=own)
        self.tokens = Counter("slalom_tokens", "Tokens of finished texts.", registry=own)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)
