"""Names in a request to constraints: only what the operator offers, each made once and shared by all who ask for it.

A request never makes the server read a file, fetch a name or run code: classifiers are loaded at start, and named.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import asdict, fields
from functools import cache
from typing import Any

from slalom.constraints import Sentiment, Similar, Toxicity
from slalom.constraints.constraint import Constraint
from slalom.constraints.custom import Custom
from slalom.constraints.loading import load_classifier
from slalom.constraints.plugins import registered
from slalom.decoding import SAMPLERS
from slalom.decoding.objective import Objective
from slalom.errors import SlalomError
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.specs import OPTIONS, WISHES, TextSpec

SHIPPED = ("sentiment", "detoxify", "similar")
REMEMBERED = 64  # different wishes that are kept: whoever asks for the same is judged in one go with the others
KINDS = ("style", "words", "detoxification", "several")  # of wishes that samplers have presets for
GROWTH = 8  # how many times its default a whole-number knob may be, for they are what takes time and memory
LARGEST = 1e6  # of any other knob

NO_WISH = Custom(lambda prompt, text: 0.0, name="no wish", satisfied_at=0.0)  # of a text that the LM alone writes


class Wishes:
    """The constraints that requests may name."""

    def __init__(self, spec: ServeSpec) -> None:
        self._sources = spec.classifiers
        self.labels = {name: _labels(source) for name, source in self._sources.items()}
        self._plugins = _known_plugins(spec.allow_constraint)
        closed = [
            *([] if spec.shipped else SHIPPED),
            *([] if self._sources else ["classifier"]),
            *([] if spec.allow_regex else ["regex"]),
            *([] if self._plugins else ["constraints"]),
        ]
        self.offered = [wish for wish in WISHES if wish not in closed]
        self._made: OrderedDict[str, Constraint] = OrderedDict()
        if spec.shipped:  # their weights are fetched and read now, not when a request asks
            for loaded in (Sentiment("positive"), Toxicity("low"), Similar("a text")):
                self._made[loaded.name] = loaded

    def constraint(self, spec: TextSpec) -> Constraint:
        """What a specification wishes for; the same object for the same wish."""
        if not spec.wishes:
            return NO_WISH
        self._check(spec)
        wanted = spec.model_dump(exclude=OPTIONS)
        key = json.dumps(wanted, sort_keys=True)
        if key not in self._made:
            source = self._sources.get(spec.classifier or "")
            self._made[key] = spec.model_copy(update={"classifier": source}).constraint()
        self._made.move_to_end(key)
        while len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return self._made[key]

    def _check(self, spec: TextSpec) -> None:
        for wish in spec.wishes:
            if wish not in self.offered:
                raise SlalomError(f"slalom.{wish} is not open on this server; choose from {', '.join(self.offered)}")
        if spec.classifier is not None and spec.classifier not in self._sources:
            raise SlalomError(f"slalom.classifier is {spec.classifier!r}; choose from {', '.join(self._sources)}")
        for name in spec.constraints:
            if name not in self._plugins:
                raise SlalomError(f"slalom.constraints has {name!r}; choose from {', '.join(self._plugins)}")


def open_knobs(sampler: str) -> dict[str, dict[str, Any]]:
    """The knobs of a sampler that a request may turn: numbers, truths and choices; never a folder or a free text."""
    kind = SAMPLERS[sampler]
    objective = {one.name for one in fields(Objective)}
    own: list[Any] = [
        one for one in fields(kind) if one.name not in objective
    ]  # one of the same name is the objective's
    return {
        one.name: {
            "name": one.name,
            "default": one.default,
            "help": one.metadata["help"],
            "least": one.metadata["least"],
            "most": None if isinstance(one.default, (bool, str)) else _most(sampler, one.name, one.default),
            "choices": one.metadata["choices"] and list(one.metadata["choices"]),
        }
        for one in [*own, *fields(Objective)]
        if not isinstance(one.default, str) or one.metadata["choices"]
    }


def check_knobs(sampler: str, given: dict[str, Any]) -> None:
    """Refuse knobs that are not open, and numbers that would take all the server's time and memory."""
    if sampler not in SAMPLERS:
        raise SlalomError(f"slalom.sampler is {sampler!r}; choose from {', '.join(SAMPLERS)}")
    known = open_knobs(sampler)
    for name, value in given.items():
        if name not in known:
            raise SlalomError(
                f"slalom.knobs has {name!r}; choose from {', '.join(known)}, those of {sampler} that requests may turn"
            )
        most = known[name]["most"]
        if most is not None and (isinstance(value, (bool, str)) or abs(value) > most):
            raise SlalomError(f"slalom.knobs.{name} is {value!r}; it must be a number, at most {most:g}")


def _most(sampler: str, knob: str, default: float) -> float:
    """The largest value of a knob that a request may give; never less than a preset does, for that is echoed."""
    most = GROWTH * max(1, default) if isinstance(default, int) else LARGEST
    return max([most, *(abs(preset[knob]) for preset in _preset_knobs(sampler))])


@cache
def _preset_knobs(sampler: str) -> list[dict[str, Any]]:
    """The knobs of every preset of a sampler, whatever kind of wish it is for."""
    found = []
    for kind in KINDS:
        wish = Custom(lambda prompt, text: 0.0)
        wish.kind = kind
        for preset in SAMPLERS[sampler].presets(wish).values():
            chosen: Any = preset.sampler
            found.append({**asdict(chosen), **asdict(preset.objective)})
    return found


def _labels(source: str) -> list[str]:
    """Load a classifier, to know that it is there and what it tells apart."""
    model, _ = load_classifier(source)
    return [str(name) for _, name in sorted(model.config.id2label.items())]


def _known_plugins(names: list[str]) -> list[str]:
    known = registered()
    for name in names:
        if name not in known:
            choices = f"choose from {', '.join(known)}" if known else "no installed package registers any"
            raise SlalomError(f"--allow-constraint is {name!r}; {choices}")
    return names
