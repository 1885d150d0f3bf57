"""Rows to finished texts on a pool of Ray actors, each with an LM and constraints of its own: `--runner ray`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import FinishedLine, Line
from slalom.frontends.batch.texts import TextWriter, Work
from slalom.frontends.ray_cluster import Cluster, connected, last_line, silence

ROWS_PER_TASK = 32  # written together by an actor, and lost together when it dies


class SlalomActor:
    """What Ray Data starts once for every actor, and calls with some rows at a time."""

    def __init__(self, work: Work) -> None:
        # Ray would report an error here as a long traceback of its own: it is handed back as an answer instead.
        self._refused: str | None = None
        try:
            self._writer = TextWriter(work)
        except SlalomError as error:
            self._refused = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Rows as JSON to finished rows as JSON; or why there will be none."""
        if self._refused is not None:
            return {"refused": [self._refused]}
        lines = (Line(**json.loads(one)) for one in batch["row"])
        finished = itertools.chain.from_iterable(self._writer.write(lines))
        return {"row": [json.dumps(one._asdict()) for one in finished]}


def run_on_ray(lines: Iterator[Line], work: Work, cluster: Cluster) -> Iterator[list[FinishedLine]]:
    """The runner on Ray: finished rows as they come.

    Ray Data starts an actor that dies again, and gives its rows to one that lives.
    """
    with connected(cluster.address) as ray:
        try:
            for block in _written(lines, work, cluster).iter_batches(batch_size=None, prefetch_batches=0):
                if "refused" in block:
                    raise SlalomError(block["refused"][0])
                yield [FinishedLine(**json.loads(one)) for one in block["row"]]
        except ray.exceptions.RayError as error:
            raise SlalomError(f"Ray gave up: {last_line(error)}; what is finished is kept") from None


def _written(lines: Iterator[Line], work: Work, cluster: Cluster) -> Any:
    """The finished rows as a dataset that is made when it is read."""
    import pyarrow
    import ray.data

    silence("ray.data")
    ray.data.DataContext.get_current().enable_progress_bars = False
    # The rows lie in Ray's object store, which moves to the disk what memory does not hold.
    blocks = [ray.put(pyarrow.table({"row": [json.dumps(one._asdict()) for one in some]})) for some in _chunks(lines)]
    return ray.data.from_arrow_refs(blocks).map_batches(
        SlalomActor,
        fn_constructor_kwargs={"work": work},
        batch_size=ROWS_PER_TASK,
        compute=ray.data.ActorPoolStrategy(size=min(cluster.actors, len(blocks))),
        num_cpus=cluster.cpus_per_actor,
        num_gpus=cluster.gpus_per_actor,
    )


def _chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    while some := list(itertools.islice(lines, ROWS_PER_TASK)):
        yield some
