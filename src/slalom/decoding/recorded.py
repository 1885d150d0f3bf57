"""An LM's name to the bias weight of dab that was measured for it: here, or on this machine and kept in the cache."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from slalom.backbone import cache
from slalom.backbone.names import DEFAULT
from slalom.errors import SlalomError

RECORDED = {DEFAULT: 2.4}  # measured by us, for the models we name


def recorded_weight(lm: str) -> float | None:
    """The weight known for an LM: calibrated on this machine, or shipped with the library."""
    path = _path(lm)
    if not path.is_file():
        return RECORDED.get(lm)
    try:
        return float(json.loads(path.read_text(encoding="utf-8"))["weight"])
    except (OSError, ValueError, KeyError, TypeError):
        raise SlalomError(f"{path} is not a calibration; delete it, or run slalom calibrate again") from None


def record_weight(lm: str, weight: float, tried: list[dict[str, Any]]) -> Path:
    """Write a weight, and what else was tried, where later runs find it."""
    path = _path(lm)
    cache.write(path, json.dumps({"weight": weight, "tried": tried}, indent=2) + "\n")
    return path


def _path(lm: str) -> Path:
    return cache.home() / "calibration" / (re.sub(r"[^\w.-]+", "_", lm.strip("/")) + ".json")
