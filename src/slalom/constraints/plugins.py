"""A name to a constraint somebody else wrote: packages register theirs in the entry-point group slalom.constraints."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from slalom.constraints.constraint import Constraint
from slalom.errors import SlalomError

GROUP = "slalom.constraints"


def registered() -> dict[str, EntryPoint]:
    """The installed packages' constraints by name."""
    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def load_kind(point: EntryPoint) -> Callable[[str], Any]:
    """What a package registered: a class or function that takes one string."""
    try:
        kind: Callable[[str], Any] = point.load()
    except Exception as error:  # whatever a stranger's module raises
        raise SlalomError(f"the constraint {point.name!r} ({point.value}) could not be loaded ({error})") from error
    return kind


def registered_constraint(name: str, argument: str) -> Constraint:
    """The constraint a package registered under a name, made from one string."""
    known = registered()
    if name not in known:
        choices = f"choose from {', '.join(known)}" if known else f"no installed package registers any in {GROUP}"
        raise SlalomError(f"unknown constraint {name!r}; {choices}")
    return constraint_of(known[name], argument)


def constraint_of(point: EntryPoint, argument: str) -> Constraint:
    """What a package registered, made from one string."""
    made = load_kind(point)(argument)
    if not isinstance(made, Constraint):
        raise SlalomError(f"{point.value} made a {type(made).__name__} of {argument!r}; it must make a Constraint")
    return made
