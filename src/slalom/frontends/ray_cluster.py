"""What is asked of Ray to a connection with it: the actors of a batch, the replicas of a server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from slalom.errors import SlalomError


class Cluster(NamedTuple):
    """Which actors are asked for, and where."""

    actors: int = 1
    cpus_per_actor: float = 1
    gpus_per_actor: float = 0
    address: str | None = None  # of a cluster; one on this machine if none is given


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[ModuleType]:
    """Ray, which is an extra, connected to a cluster; a connection that is there already is used and left as it is."""
    try:
        import ray
    except ImportError:
        raise SlalomError("--runner ray needs Ray: pip install 'slalom[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SlalomError(f"no Ray cluster could be reached at {address!r} ({last_line(error)})") from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def silence(*loggers: str) -> None:
    """Let parts of Ray report errors alone; they set their own level when they are imported, so call it after that."""
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)


def last_line(error: Exception) -> str:
    """Of a remote traceback, what was wrong."""
    return str(error).strip().splitlines()[-1].removeprefix("slalom.errors.SlalomError: ")
