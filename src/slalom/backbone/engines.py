"""An engine's name and a model to the engine that runs it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from slalom.backbone import cache
from slalom.backbone.engine import Engine, TransformersEngine
from slalom.backbone.names import EngineName
from slalom.backbone.placement import is_settled
from slalom.backbone.saved import SavedModel
from slalom.errors import SlalomError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAILURES = Path("openvino") / "failed"  # in the cache folder: a file for every model that could not be converted


def engine_for(model: PreTrainedModel | SavedModel, name: EngineName) -> Engine:
    """The named engine; `auto` is openvino where it is installed and measured faster on this machine, else torch.

    Torch needs a saved model's weights at once, openvino only to convert them.
    """
    known_engine(name)
    settled = not isinstance(model, SavedModel) and is_settled(model)
    possible = model.device.type == "cpu" and not settled and has_openvino()
    if name == "torch" or (name == "auto" and not possible):
        return _torch_engine(model)
    if not has_openvino():
        raise SlalomError("the openvino engine is not installed; pip install 'slalom[openvino]', or use torch")
    from slalom.backbone.openvino_engine import prepare

    try:
        prepared = prepare(model, again=name == "openvino")
    except SlalomError:
        if name == "openvino":
            raise
        return _torch_engine(model)
    faster = prepared.milliseconds["openvino"] < prepared.milliseconds["torch"]
    return prepared.engine if faster or name == "openvino" else _torch_engine(model)


def _torch_engine(model: PreTrainedModel | SavedModel) -> Engine:
    return TransformersEngine(model.model if isinstance(model, SavedModel) else model)


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
