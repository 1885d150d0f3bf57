"""A server's settings to replicas of it on Ray Serve, each with an LM of its own and the same HTTP face."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from slalom.errors import SlalomError
from slalom.frontends.ray_cluster import Cluster, connected, last_line, silence
from slalom.frontends.server.settings import ServeSpec

if TYPE_CHECKING:
    from fastapi import FastAPI

NAME = "slalom"
SPARE = 100  # requests a replica takes in beyond its queue, so that it answers them 429 itself


def build_app(settings: ServeSpec) -> FastAPI:
    """The application of one replica, with its LM."""
    from slalom.api import load
    from slalom.backbone.names import DEFAULT
    from slalom.frontends.server.app import make_app, start_log

    lm = load(settings.model or DEFAULT, device=settings.device, dtype=settings.dtype, engine=settings.engine)
    start_log()
    return make_app(lm, settings)


@contextlib.contextmanager
def deployed(settings: ServeSpec, port: int, cluster: Cluster) -> Iterator[None]:
    """While open, the replicas answer on this port of every machine of the cluster that has one."""
    with connected(cluster.address):
        from ray import serve

        def build() -> FastAPI:  # Serve calls only plain functions on its replicas
            return build_app(settings)

        deployment = serve.deployment(
            name=NAME,
            num_replicas=cluster.actors,
            ray_actor_options={"num_cpus": cluster.cpus_per_actor, "num_gpus": cluster.gpus_per_actor},
            max_ongoing_requests=settings.queue + SPARE,
            graceful_shutdown_timeout_s=settings.grace,
        )(serve.ingress(build)())
        serve.start(http_options={"host": settings.host, "port": port})
        silence("ray.serve")
        try:
            serve.run(deployment.bind(), name=NAME, route_prefix="/")
            yield
        except RuntimeError as error:
            raise SlalomError(f"Ray Serve could not start the replicas: {last_line(error)}") from None
        finally:
            serve.shutdown()


def serve_on_ray(settings: ServeSpec, port: int, cluster: Cluster, announce: Callable[[], None]) -> None:
    """Serve until told to stop."""
    stop = threading.Event()
    with deployed(settings, port, cluster):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        announce()
        stop.wait()
