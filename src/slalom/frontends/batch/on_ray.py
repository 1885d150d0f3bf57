"""Rows to finished texts on a pool of Ray actors, each with an LM and constraints of its own: `--runner ray`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import FinishedLine, Line
from slalom.frontends.batch.texts import TextWriter, Work

ROWS_PER_TASK = 32  # written together by an actor, and lost together when it dies
TASK_RETRIES = 3  # of rows whose actor died, before the job is given up: they may be what kills it


class Cluster(NamedTuple):
    """Where a job runs on Ray."""

    actors: int = 1
    cpus_per_actor: float = 1
    gpus_per_actor: float = 0
    address: str | None = None  # of a cluster; one on this machine if none is given


class SlalomActor:
    """What Ray Data starts once for every actor, and calls with some rows at a time."""

    def __init__(self, work: Work) -> None:
        self._writer = TextWriter(work)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Rows as JSON to finished rows as JSON."""
        lines = (Line(**json.loads(one)) for one in batch["row"])
        finished = itertools.chain.from_iterable(self._writer.write(lines))
        return {"row": [json.dumps(one._asdict()) for one in finished]}


def run_on_ray(lines: Iterator[Line], work: Work, cluster: Cluster) -> Iterator[list[FinishedLine]]:
    """The runner on Ray: blocks of finished rows as they come. Actors that die are started again, and their rows given to another."""
    ray = started_ray(cluster.address)
    import pyarrow

    # The rows lie in Ray's object store, which moves to the disk what memory does not hold.
    blocks = [ray.put(pyarrow.table({"row": [json.dumps(one._asdict()) for one in some]})) for some in _chunks(lines)]
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    written = ray.data.from_arrow_refs(blocks).map_batches(
        SlalomActor,
        fn_constructor_kwargs={"work": work},
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=min(cluster.actors, len(blocks))),
        num_cpus=cluster.cpus_per_actor,
        num_gpus=cluster.gpus_per_actor,
        max_restarts=-1,
        max_task_retries=TASK_RETRIES,
    )
    for block in written.iter_batches(batch_size=None, prefetch_batches=0):
        yield [FinishedLine(**json.loads(one)) for one in block["row"]]


def started_ray(address: str | None) -> ModuleType:
    """Ray, connected to a cluster; it is an extra."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise SlalomError("--runner ray needs Ray: pip install 'slalom[ray]'") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise SlalomError(f"no Ray cluster could be reached at {address or 'this machine'} ({error})") from None
    return ray


def _chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    while some := list(itertools.islice(lines, ROWS_PER_TASK)):
        yield some
