"""Tasks and samplers as they are typed to cells: one sampler, set up one way, on one task."""

from __future__ import annotations

from typing import Any, NamedTuple

from slalom.errors import SlalomError
from slalom.evaluation.tasks import Task

UNSTEERED = "none"  # the sampler that does not steer
TOLD = "+told"  # after a sampler's name: the LM is also told the wish in its prompt


class Cell(NamedTuple):
    """One sampler, set up one way, on one task: a row of a table, or a point of a plot."""

    task: str
    sampler: str
    preset: str = "default"
    strength: float = 1.0
    prefix: bool = False
    knobs: tuple[tuple[str, Any], ...] = ()
    told: bool = False  # whether the LM is also told the wish in its prompt

    @property
    def id(self) -> str:
        """Unique among all cells."""
        return "/".join([self.task, self._name, f"x{self.strength:g}", *self._changed])

    @property
    def label(self) -> str:
        """The sampler and how it is set up, for tables."""
        return ", ".join([self._name, *self._changed])

    @property
    def _name(self) -> str:
        preset = "" if self.preset == "default" else f":{self.preset}"
        return f"{self.sampler}{preset}{' + prefix' if self.prefix else ''}{' + told' if self.told else ''}"

    @property
    def _changed(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.knobs]

    @property
    def typed_sampler(self) -> str:
        """The sampler as it is typed on the command line."""
        preset = "" if self.preset == "default" else f":{self.preset}"
        return f"{self.sampler}{preset}{TOLD if self.told else ''}"


class SamplerName(NamedTuple):
    """What `dab:paper+told` stands for."""

    sampler: str
    preset: str
    told: bool


def parse_sampler(typed: str) -> SamplerName:
    """`dab`, `dab:paper` or `dab:paper+told`, checked."""
    from slalom.constraints.custom import ANYTHING
    from slalom.decoding import SAMPLERS

    sampler, _, preset = typed.removesuffix(TOLD).partition(":")
    if sampler not in SAMPLERS:
        raise SlalomError(f"unknown sampler {sampler!r}; choose from {', '.join(SAMPLERS)}")
    presets = SAMPLERS[sampler].presets(ANYTHING)
    if preset and preset not in presets:
        raise SlalomError(f"unknown preset {preset!r} of {sampler}; choose from {', '.join(presets)}")
    return SamplerName(sampler, preset or "default", typed.endswith(TOLD))


def parse_samplers(typed: str, default: tuple[str, ...] = ()) -> list[SamplerName]:
    """A comma-separated list; `all` for every sampler, an empty one for those of the default that are installed."""
    from slalom.decoding import SAMPLERS

    if typed == "all":
        return [parse_sampler(name) for name in SAMPLERS]
    listed = [name.strip() for name in typed.split(",") if name.strip()]
    if not listed:
        listed = [name for name in default if name.partition(":")[0] in SAMPLERS]
    return list(dict.fromkeys(map(parse_sampler, listed)))


def task_cells(
    tasks: list[Task],
    samplers: list[SamplerName],
    strengths: list[float],
    prefixes: tuple[bool, ...] = (False,),
    knobs: tuple[tuple[str, Any], ...] = (),
) -> list[Cell]:
    """Every task by every sampler at every strength, each id once.

    The sampler that does not steer has one strength and no knobs.
    """
    cells = [
        Cell(task.name, name.sampler, name.preset, strength, prefix, own_knobs, name.told)
        for task in tasks
        for prefix in prefixes
        for name in samplers
        for strengths_of, own_knobs in [([1.0], ()) if name.sampler == UNSTEERED else (strengths, knobs)]
        for strength in strengths_of
    ]
    return list({cell.id: cell for cell in cells}.values())
