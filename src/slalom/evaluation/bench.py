"""A model to how fast it is steered: ratios of times measured in turns and of memory; what `slalom bench` prints."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from slalom.api import SteerableModel, load
from slalom.backbone.engines import has_openvino
from slalom.backbone.names import EngineName
from slalom.constraints import Sentiment
from slalom.evaluation.bench_memory import memory_over_generate
from slalom.evaluation.bench_profile import DECODED, looks_share, profile
from slalom.evaluation.bench_start import time_start
from slalom.evaluation.bench_steps import LENGTH, LENGTHS, STEPS, Figures, scaling, step_and_generate, textbook_over_dab
from slalom.evaluation.satisfied import TOLD, satisfied_variants

INSTRUCTIONS = (
    "sse4_2",
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "bf16",
    "i8mm",
)

Log = Callable[[str], None]


class BenchSettings(NamedTuple):
    """How much to measure."""

    model: str
    engines: tuple[EngineName, ...]
    batches: tuple[int, ...] = (1, 20)
    repeats: int = 5
    prompts: int = 30  # that satisfied texts are written for, by either wish
    peers: int = 3  # of those, the ones that BOLT gets, or as many as fill a batch
    quick: bool = False


def measure(settings: BenchSettings, log: Log, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Everything `slalom bench` prints; what is measured so far is handed to `keep` after every part."""
    lms = {engine: load(settings.model, engine=engine) for engine in settings.engines}
    constraint = Sentiment("positive")
    measured: dict[str, Any] = {"machine": machine(settings.model, lms["torch"])}
    measured |= _steps(settings, lms, log)
    keep(measured)
    log("profile")
    profiles: dict[str, Figures] = {
        engine: profile(lm, constraint, settings.batches, 2 if settings.quick else 2 * STEPS)
        for engine, lm in lms.items()
    }
    measured |= {"profile": profiles, "looks_share": looks_share(profiles)}
    measured["decoded_tokens_per_second"] = _decoded(profiles, measured["milliseconds"]["generate"])
    keep(measured)
    log("memory")
    most = max(settings.batches)
    cases = {f"batch {most}": (most, LENGTH), f"{LENGTHS[-1]} tokens": (1, LENGTHS[-1])}
    if settings.quick:
        cases = {f"batch {most}": (most, LENGTH)}
    measured |= memory_over_generate(
        settings.model, settings.engines[:1] if settings.quick else settings.engines, cases
    )
    log("start")
    measured["start"] = time_start(settings.model, "auto", 1 if settings.quick else settings.repeats)
    keep(measured)
    measured["satisfied_over_generate"] = {}
    for engine in reversed(settings.engines):
        measured["satisfied_over_generate"][engine] = _satisfied(settings, engine, lms[engine], log)
        keep(measured)
    if not settings.quick:
        log("scaling")
        measured["scaling"] = scaling(lms, constraint)
        keep(measured)
        log("textbook")
        measured |= textbook_over_dab(lms["torch"], max(settings.batches), settings.repeats)
    return measured


def _satisfied(settings: BenchSettings, engine: EngineName, lm: SteerableModel, log: Log) -> dict[str, Any]:
    """What a satisfied text costs by batch. Untold searches are long: by the last engine alone; BOLT is torch's."""
    told = TOLD if engine == settings.engines[-1] and not settings.quick else {"told": TOLD["told"]}
    peers = settings.peers if engine == "torch" else 0
    return {
        str(batch): satisfied_variants(lm, batch, settings.prompts, peers, told, settings.quick, log)
        for batch in (settings.batches[:1] if settings.quick else settings.batches)
    }


def _steps(settings: BenchSettings, lms: dict[EngineName, SteerableModel], log: Log) -> dict[str, Any]:
    """A step of either sampler over `generate` in the precision that torch runs the model in on this machine.

    Where bfloat16 has no instructions of its own it is several times slower than float32, and no yardstick.
    """
    own = str(lms["torch"].dtype).removeprefix("torch.")
    plain: dict[str, Any] = {own: lms["torch"].model}
    milliseconds: dict[str, Figures] = {}
    for batch in settings.batches:
        log(f"step and generate, batch {batch}")
        steps = 1 if settings.quick else STEPS
        measured = step_and_generate(lms, plain, Sentiment("positive"), batch, settings.repeats, steps)
        for kind, rows in measured.items():
            for name, times in rows.items():
                milliseconds.setdefault(kind, {}).setdefault(name, {}).update(times)

    def over(sampler: str) -> dict[str, dict[str, float]]:
        reference = milliseconds["generate"][own]
        return {
            engine: {batch: round(took / reference[batch], 3) for batch, took in times.items()}
            for engine, times in milliseconds[sampler].items()
        }

    return {
        "milliseconds": milliseconds,
        "step_over_generate": over("climb"),
        "dab_step_over_generate": over("dab"),
    }


def _decoded(profiles: dict[str, Figures], generate: Figures) -> dict[str, dict[str, float]]:
    """Tokens really decoded in a second: of steps by engine, of `generate` by precision."""
    found = {engine: {batch: parts[DECODED] for batch, parts in rows.items()} for engine, rows in profiles.items()}
    for dtype, times in generate.items():
        found[f"generate, {dtype}"] = {
            batch: round(1000 * LENGTH * int(batch) / took, 1) for batch, took in times.items()
        }
    return found


def machine(model: str, lm: SteerableModel) -> dict[str, Any]:
    """What the figures were measured on."""
    packages = ["slalom", "torch", "transformers", *(["openvino", "nncf"] if has_openvino() else [])]
    return {
        "model": model,
        "dtype": str(lm.dtype).removeprefix("torch."),
        "cpu": _cpuinfo("model name") or platform.processor(),
        "instructions": instructions(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in packages},
    }


def instructions() -> list[str]:
    """Which of the instructions that matter here the CPU has."""
    listed = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return [name for name in INSTRUCTIONS if name in listed] or [torch.backends.cpu.get_cpu_capability().lower()]


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(field):
                return line.split(":", 1)[1].strip()
    return ""
