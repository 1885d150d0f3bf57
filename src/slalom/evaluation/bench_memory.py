"""A contender to the memory it takes above what stands after loading: each in a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

from slalom.backbone.engines import EngineName, known_engine

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
STEPS = 12  # drafts of a text at the most: what a search holds at once does not grow with its length


def memory_over_generate(
    model: str, engines: tuple[EngineName, ...], cases: dict[str, tuple[int, int]]
) -> dict[str, Any]:
    """For each case, a batch and a length: megabytes while steering over those while generating, by engine.

    What this system does not say is missing.
    """
    found = {
        case: {
            name: peak
            for name in ("generate", *engines)
            if (peak := _in_a_process(name, model, batch, length)) is not None
        }
        for case, (batch, length) in cases.items()
    }
    ratios = {
        case: {name: round(peak / peaks["generate"], 2) for name, peak in peaks.items() if name != "generate"}
        for case, peaks in found.items()
        if peaks.get("generate")
    }
    return {"memory_over_generate": ratios, "megabytes_above_loading": found}


def _in_a_process(name: str, model: str, batch: int, length: int) -> float | None:
    code = f"import {__name__} as memory; memory.print_peak({name!r}, {model!r}, {batch}, {length})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = run.stdout.split()[-1]
    return None if said == "unknown" else float(said)


def print_peak(name: str, model: str, batch: int, length: int) -> None:
    """Load, write a short text, then steer (by an engine) or `generate`: megabytes above what stood before that."""
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
    before = _start_afresh()
    run([PROMPT] * batch, length)
    peak = _megabytes("VmHWM")
    print("unknown" if before is None or peak is None else round(peak - before, 1))


def _start_afresh() -> float | None:
    """Give back what is free, forget the peak so far; the megabytes that stand, if the system lets us."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        RESET.write_text("5", encoding="ascii")
    except OSError:
        return None
    return _megabytes("VmRSS")


def _megabytes(field: str) -> float | None:
    with contextlib.suppress(OSError):
        for line in STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    return None
