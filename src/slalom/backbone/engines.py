"""An engine's name and a model to the engine that runs it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Literal, get_args

from transformers import PreTrainedModel

from slalom.backbone import cache
from slalom.backbone.engine import Engine, TransformersEngine
from slalom.backbone.placement import is_settled
from slalom.errors import SlalomError

EngineName = Literal["auto", "torch", "openvino"]
FAILURES = Path("openvino") / "failed"  # in the cache folder: a file for every model that could not be converted


def engine_for(model: PreTrainedModel, name: EngineName) -> Engine:
    """The named engine; `auto` is openvino where it is installed and measured faster on this machine, else torch."""
    known_engine(name)
    possible = model.device.type == "cpu" and not is_settled(model) and has_openvino()
    if name == "torch" or (name == "auto" and not possible):
        return TransformersEngine(model)
    if not has_openvino():
        raise SlalomError("the openvino engine is not installed; pip install 'slalom[openvino]', or use torch")
    from slalom.backbone.openvino_engine import prepare

    try:
        prepared = prepare(model, again=name == "openvino")
    except SlalomError:
        if name == "openvino":
            raise
        return TransformersEngine(model)
    faster = prepared.milliseconds["openvino"] < prepared.milliseconds["torch"]
    return prepared.engine if faster or name == "openvino" else TransformersEngine(model)


def known_engine(name: str) -> EngineName:
    """The name, if it is one."""
    for known in get_args(EngineName):
        if name == known:
            return known
    raise SlalomError(f"unknown engine {name!r}; choose from {', '.join(get_args(EngineName))}")


def installed() -> list[EngineName]:
    """The engines this installation has."""
    return ["torch", "openvino"] if has_openvino() else ["torch"]


def has_openvino() -> bool:
    """Whether the extra is installed."""
    return all(importlib.util.find_spec(package) for package in ("openvino", "nncf"))


def failed_conversions() -> dict[str, str]:
    """The models that openvino could not convert here, each with the reason."""
    files = sorted((cache.home() / FAILURES).glob("*.json"))
    notes = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {note["model"]: note["reason"] for note in notes}
