"""The names of a sampler and a preset, and a constraint, to the settings of a whole run."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from slalom.constraints.constraint import Constraint
from slalom.decoding import SAMPLERS
from slalom.decoding.knobs import with_knobs
from slalom.decoding.objective import Objective
from slalom.decoding.sampler import Preset, Stop
from slalom.errors import SlalomError

DEFAULT_SAMPLER = "climb"


def preset_for(
    name: str,
    constraint: Constraint,
    lm: str,
    strength: float | None = None,
    steps: int | None = None,
    until: float | None = None,
    knobs: dict[str, Any] | None = None,
    sampler: str = DEFAULT_SAMPLER,
    temperature: float | None = None,
    top_p: float | None = None,
    select: str | None = None,
) -> Preset:
    """The sampler's named preset for a constraint and an LM, with whatever was asked for by hand.

    A degree given by hand is where to stop at once; the preset's own goes on for a fluent text.
    """
    chosen = _known("preset", name, _known("sampler", sampler, SAMPLERS).presets(constraint))
    _within("strength", strength, 0)
    _within("steps", steps, 1)
    _within("temperature", temperature, 0)
    if until is not None and not 0 < until <= 1:
        raise SlalomError(f"until is {until:g}; it must be above 0 and at most 1")
    if top_p is not None and not 0 < top_p <= 1:
        raise SlalomError(f"top_p is {top_p:g}; it must be above 0 and at most 1")
    for_lm = getattr(chosen.sampler, "for_lm", None)
    given = knobs or {}
    scales = {field.name for field in fields(Objective)}
    objective = with_knobs(chosen.objective, {name: value for name, value in given.items() if name in scales})
    adjusted = with_knobs(
        for_lm(lm) if for_lm else chosen.sampler,
        {name: value for name, value in given.items() if name not in scales},
        sorted(scales),
    )
    if top_p is not None and temperature is None:
        temperature = chosen.temperature or 1.0  # a nucleus is there to be drawn from
    return replace(
        chosen,
        sampler=adjusted if strength is None else adjusted.stronger(strength),
        steps=steps or chosen.steps,
        stop=chosen.stop if until is None else Stop(until),
        choice=select or chosen.choice,
        temperature=chosen.temperature if temperature is None else temperature,
        top_p=chosen.top_p if top_p is None else top_p,
        objective=objective,
    )


def _known(what: str, name: str, choices: dict[str, Any]) -> Any:
    if name not in choices:
        raise SlalomError(f"unknown {what} {name!r}; choose from {', '.join(choices)}", what)
    return choices[name]


def _within(what: str, value: float | None, least: float) -> None:
    if value is not None and value < least:
        raise SlalomError(f"{what} is {value:g}; it must be at least {least:g}")
