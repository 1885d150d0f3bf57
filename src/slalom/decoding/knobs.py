"""A sampler's knobs: fields of its frozen dataclass, each with its help and its rule, changed by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, field, fields, replace
from typing import Any, TypeVar

from slalom.errors import SlalomError

S = TypeVar("S")


def knob(default: Any, help: str, *, least: float | None = None, choices: Iterable[str] | None = None) -> Any:
    """A documented field of a sampler."""
    listed = tuple(choices) if choices is not None else None
    text = f"{help}: {', '.join(listed)}" if listed else help
    return field(default=default, metadata={"help": text, "least": least, "choices": listed})


def with_knobs(sampler: S, given: dict[str, Any], others: Iterable[str] = ()) -> S:
    """The sampler with some knobs set, each checked; values may be text, as typed on a command line.

    `others` are knobs that exist besides the sampler's, to be named to whoever asks for an unknown one.
    """
    known = {one.name: one for one in fields(sampler)}  # type: ignore[arg-type]
    for name in given:
        if name not in known:
            raise SlalomError(f"unknown knob {name!r}; choose from {', '.join([*known, *others])}", f"knobs.{name}")
    return replace(sampler, **{name: _checked(known[name], value) for name, value in given.items()})  # type: ignore[type-var]


def _checked(one: Field[Any], given: Any) -> Any:
    """The value in its field's type, if it keeps the field's rule."""
    kind: type[Any] = type(one.default)
    field = f"knobs.{one.name}"
    if kind is int and isinstance(given, float) and not given.is_integer():
        raise SlalomError(f"knob {one.name} is {given!r}; it must be a whole number", field)
    try:
        value = _truth(given) if kind is bool else kind(given)
    except (TypeError, ValueError):
        raise SlalomError(f"knob {one.name} is {given!r}; it must be of type {kind.__name__}", field) from None
    least, choices = one.metadata["least"], one.metadata["choices"]
    if choices is not None and value not in choices:
        raise SlalomError(f"knob {one.name} is {given!r}; choose from {', '.join(choices)}", field)
    if least is not None and not value >= least:
        raise SlalomError(f"knob {one.name} is {given!r}; it must be at least {least:g}", field)
    return value


def _truth(given: Any) -> bool:
    named = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    if str(given).lower() not in named:
        raise ValueError
    return named[str(given).lower()]
