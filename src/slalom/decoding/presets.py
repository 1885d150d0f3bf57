"""A preset's name and a constraint to the settings of a whole run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from slalom.constraints.constraint import Constraint
from slalom.constraints.keywords import Keywords
from slalom.decoding.calibration import recorded_weight
from slalom.decoding.dab import DAB
from slalom.decoding.knobs import with_knobs
from slalom.decoding.run import Stop
from slalom.errors import SlalomError


@dataclass(frozen=True)
class Preset:
    """Settings of a whole run."""

    sampler: DAB
    steps: int  # drafts at the most
    stop: Stop | None = None  # when a row may leave before that
    choice: str = "score"  # which draft is best: "score", or "joint" with fluency


# The paper's text and table of hyper-parameters: log-probabilities in the norm, the LM's candidates alone.
_PAPER = DAB(
    weight=1.05,
    growth=1.0,
    schedule="decreasing",
    tau=0.1,
    top_k=250,
    norm="log-probabilities",
    scores="gradient",
    lm_weight=0.0,
    moves=0,
    looks=1,
    hold="all",
    keep=False,
    wanted=0.0,
    climb=False,
)

PRESETS = {
    "default": Preset(DAB(), steps=40, stop=Stop(0.98, fluent=1.3, patience=12), choice="joint"),
    "paper": Preset(_PAPER, steps=20),
    "paper-keywords": Preset(replace(_PAPER, weight=1.4), steps=200),
}


def preset_for(
    name: str,
    constraint: Constraint,
    lm: str,
    strength: float = 1.0,
    steps: int | None = None,
    until: float | None = None,
    knobs: dict[str, Any] | None = None,
) -> Preset:
    """The named preset for a constraint and an LM, with whatever was asked for by hand.

    A degree given by hand is where to stop at once; the preset's own goes on for a fluent text.
    """
    if name not in PRESETS:
        raise SlalomError(f"unknown preset {name!r}; choose from {', '.join(PRESETS)}")
    if strength < 0:
        raise SlalomError(f"strength is {strength:g}; it must be at least 0")
    if steps is not None and steps < 1:
        raise SlalomError(f"steps is {steps}; it must be at least 1")
    if until is not None and not 0 < until <= 1:
        raise SlalomError(f"until is {until:g}; it must be above 0 and at most 1")
    if name == "paper" and all(isinstance(part, Keywords) for _, part in constraint.terms()):
        name = "paper-keywords"
    chosen = PRESETS[name]
    weight = recorded_weight(lm) if name == "default" else None
    sampler = with_knobs(chosen.sampler, ({} if weight is None else {"weight": weight}) | (knobs or {}))
    return replace(
        chosen,
        sampler=replace(sampler, weight=strength * sampler.weight),
        steps=steps or chosen.steps,
        stop=chosen.stop if until is None else Stop(until),
    )
