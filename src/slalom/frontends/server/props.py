"""A server's settings to what /props tells of it: defaults, wishes, samplers and limits, and no secrets."""

from __future__ import annotations

from typing import Any

from slalom.api import SteerableModel
from slalom.constraints.topic import TOPICS
from slalom.decoding import SAMPLERS
from slalom.frontends import listing
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wire import SlalomBody
from slalom.frontends.server.wishes import Wishes, open_knobs
from slalom.frontends.specs import TextSpec


def describe_server(lm: SteerableModel, name: str, settings: ServeSpec, wishes: Wishes) -> dict[str, Any]:
    """What a client may ask of this server."""
    return {
        "model": name,
        "engine": lm.engine.name,
        "chat": lm.chats,
        "defaults": TextSpec.model_validate({}).model_dump(),
        "fields": SlalomBody.model_json_schema(),
        "wishes": wishes.offered,
        "samplers": [{"name": sampler, "knobs": list(open_knobs(sampler).values())} for sampler in SAMPLERS],
        "presets": listing.presets(),
        "topics": list(TOPICS),
        "classifiers": [{"name": known, "labels": labels} for known, labels in wishes.labels.items()],
        "constraints": list(wishes.plugins),
        "limits": settings.limits,
    }
