"""Steer any Hugging Face language model while it decodes. The public names; each is imported when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slalom.api import SteerableModel, Steered, custom_generate, load
    from slalom.constraints import (
        Avoid,
        Classifier,
        Constraint,
        Custom,
        EndsWithSentence,
        Keywords,
        Length,
        Regex,
        Sentiment,
        Similar,
        TableClassifier,
        Topic,
        Toxicity,
    )
    from slalom.decoding import DAB, Climb
    from slalom.decoding.scheduler import Scheduler
    from slalom.errors import SlalomError

__version__ = "0.1.0"

_HOMES = {
    "Avoid": "slalom.constraints",
    "Classifier": "slalom.constraints",
    "Climb": "slalom.decoding",
    "Constraint": "slalom.constraints",
    "Custom": "slalom.constraints",
    "DAB": "slalom.decoding",
    "EndsWithSentence": "slalom.constraints",
    "Keywords": "slalom.constraints",
    "Length": "slalom.constraints",
    "Regex": "slalom.constraints",
    "Scheduler": "slalom.decoding.scheduler",
    "Sentiment": "slalom.constraints",
    "Similar": "slalom.constraints",
    "SlalomError": "slalom.errors",
    "SteerableModel": "slalom.api",
    "Steered": "slalom.api",
    "TableClassifier": "slalom.constraints",
    "Topic": "slalom.constraints",
    "Toxicity": "slalom.constraints",
    "custom_generate": "slalom.api",
    "load": "slalom.api",
}

__all__ = [
    "DAB",
    "Avoid",
    "Classifier",
    "Climb",
    "Constraint",
    "Custom",
    "EndsWithSentence",
    "Keywords",
    "Length",
    "Regex",
    "Scheduler",
    "Sentiment",
    "Similar",
    "SlalomError",
    "SteerableModel",
    "Steered",
    "TableClassifier",
    "Topic",
    "Toxicity",
    "custom_generate",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'slalom' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
