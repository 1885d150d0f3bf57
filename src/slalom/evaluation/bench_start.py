"""A command to how long its user waits: seconds from the start of the process to the first draft, part by part.

Nothing heavy is imported here before it is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

from slalom.backbone.importing import without_collection

if TYPE_CHECKING:
    from slalom.backbone.names import EngineName
    from slalom.decoding.scheduler import RowReport

PROMPT, LABEL = "The pizza", "negative"


class _Enough(Exception):  # noqa: N818
    """The first draft is there."""


def time_start(model: str, engine: EngineName, runs: int) -> dict[str, Any]:
    """Median seconds of `slalom generate` up to its first draft, in processes of their own; the first is not counted.

    `cpu` are the seconds that all cores together were busy: a machine that does other things as well does not change
    them much.
    """
    times = [_in_a_process(model, engine) for _ in range(runs + 1)][1:]
    parts = {part: round(median(one[part] for one in times), 2) for part in times[0]}
    return {**parts, "slalom --help": _help(), "runs": runs}


def _in_a_process(model: str, engine: EngineName) -> dict[str, float]:
    imports = f"import time; entered = time.time(); import slalom.frontends.cli, {__name__} as start"
    code = f"{imports}; start.print_start({model!r}, {engine!r}, {time.time()!r}, entered)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def print_start(model: str, engine: EngineName, begun: float, entered: float) -> None:
    """What `slalom generate` does until there is a draft, each part timed since the one before.

    The process was begun and Python entered at these times; the command's own module is imported already.
    """
    marks = {"python": entered}
    with without_collection():
        import slalom.api
        import slalom.constraints

    marks["imports"] = time.time()
    lm = slalom.api.load(model, engine=engine)
    marks["LM"] = time.time()
    wish = slalom.constraints.Sentiment(LABEL)
    marks["guide"] = time.time()

    def stop(rows: list[RowReport]) -> None:
        marks["first draft"] = time.time()
        raise _Enough

    try:
        lm.steer(PROMPT, wish, callbacks=(stop,))
    except _Enough:
        ends = [begun, *marks.values()]
        parts = {part: end - ends[number] for number, (part, end) in enumerate(marks.items())}
        print(json.dumps({**parts, "total": ends[-1] - begun, "cpu": time.process_time()}))


def _help() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "slalom.frontends.cli", "--help"], capture_output=True, check=True)
    return round(time.perf_counter() - started, 2)
