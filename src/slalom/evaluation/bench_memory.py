"""A contender to the memory it takes above what stands after loading: each in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from slalom.backbone.engines import known_engine
from slalom.backbone.names import EngineName

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
STEPS = 12  # drafts of a text at the most: what a search holds at once does not grow with its length


class Taken(NamedTuple):
    """Megabytes of a process."""

    standing: float  # after loading
    above: float  # that, at the peak of the run


def memory_over_generate(
    model: str, engines: tuple[EngineName, ...], cases: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """For each case, a batch and a length, by engine: what steering takes over what `generate` takes.

    `memory_over_generate` is of the memory above what stands after loading, `peak_over_generate` of all of it. What
    this system does not say is missing.
    """
    found = {
        case: {
            name: taken
            for name in ("generate", *engines)
            if (taken := _in_a_process(name, model, batch, length)) is not None
        }
        for case, (batch, length) in cases.items()
    }
    return {
        "memory_over_generate": {case: _over(rows, lambda one: one.above) for case, rows in found.items()},
        "peak_over_generate": {case: _over(rows, lambda one: one.standing + one.above) for case, rows in found.items()},
        "megabytes": {case: {name: one._asdict() for name, one in rows.items()} for case, rows in found.items()},
    }


def _over(rows: dict[str, Taken], size: Callable[[Taken], float]) -> dict[str, float]:
    """Every engine's over that of `generate`."""
    plain = rows.get("generate")
    return {name: round(size(one) / size(plain), 2) for name, one in rows.items() if plain and name != "generate"}


def _in_a_process(name: str, model: str, batch: int, length: int) -> Taken | None:
    code = f"import {__name__} as memory; memory.print_taken({name!r}, {model!r}, {batch}, {length})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = json.loads(run.stdout.splitlines()[-1])
    return None if said is None else Taken(**said)


def print_taken(name: str, model: str, batch: int, length: int) -> None:
    """Load, write a short text, then steer (by an engine) or `generate`: what stood before that, and the peak above."""
    from slalom.api import load
    from slalom.constraints import Sentiment
    from slalom.evaluation.bench_steps import PROMPT, plain_generate

    if name == "generate":
        lm = load(model, engine="torch")

        def run(prompts: list[str], length: int) -> None:
            plain_generate(lm, lm.model, prompts, length)
    else:
        lm, wish = load(model, engine=known_engine(name)), Sentiment("positive")

        def run(prompts: list[str], length: int) -> None:
            lm.steer(prompts, wish, length=length, steps=STEPS)

    run([PROMPT], 4)  # what is made once
    standing = start_afresh()
    run([PROMPT] * batch, length)
    peak = megabytes("VmHWM")
    if standing is None or peak is None:
        print(json.dumps(None))
    else:
        print(json.dumps(Taken(round(standing, 1), round(peak - standing, 1))._asdict()))


def start_afresh() -> float | None:
    """Give back what is free, forget the peak so far; the megabytes that stand, if the system lets us."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        RESET.write_text("5", encoding="ascii")
    except OSError:
        return None
    return megabytes("VmRSS")


def megabytes(field: str) -> float | None:
    """A field of this process's status, if the system has it."""
    with contextlib.suppress(OSError):
        for line in STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return None
