"""Names in a request to constraints: only what the operator offers, each made once and shared by all who ask for it.

A request never makes the server read a file, fetch a name or run code: classifiers are loaded at start, and named.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, fields
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, NamedTuple

import torch

from slalom.backbone.saved import encoder_facts
from slalom.constraints import Sentiment, Similar, Toxicity, classifier
from slalom.constraints.classifier import MarginConstraint, label_index
from slalom.constraints.constraint import Constraint
from slalom.constraints.custom import Custom
from slalom.constraints.encoder import EncoderConstraint
from slalom.constraints.loading import open_classifier
from slalom.constraints.plugins import constraint_of, load_kind, registered
from slalom.constraints.sentiment import DESCRIPTIONS
from slalom.decoding import SAMPLERS, lm_steer
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


class Registered(NamedTuple):
    """A classifier that requests may name."""

    labels: dict[int, str]  # by number
    wishes: dict[int, MarginConstraint]  # one a label, likewise


class Wishes:
    """The constraints that requests may name; whatever has to be read for them is read here, at the start."""

    def __init__(self, spec: ServeSpec) -> None:
        self._classifiers = {name: _registered(source) for name, source in spec.classifiers.items()}
        self.labels = {
            name: [wish.label_name for _, wish in sorted(one.wishes.items())] for name, one in self._classifiers.items()
        }
        self.plugins = _known_plugins(spec.allow_constraint)
        closed = [
            *([] if spec.shipped else SHIPPED),
            *([] if self._classifiers else ["classifier"]),
            *([] if spec.allow_regex else ["regex"]),
            *([] if self.plugins else ["constraints"]),
        ]
        self.offered = [wish for wish in WISHES if wish not in closed]
        self._shipped: dict[str, Constraint] = {}
        if spec.shipped:
            self._shipped = {label: Sentiment(label) for label in DESCRIPTIONS}
            self._shipped |= {"detoxify": Toxicity("low"), "similar": Similar("a text")}
            for folder in lm_steer.SHIPPED_STEERS.values():
                lm_steer.kept_steer(lm_steer.SHIPPED / folder)
        self._made: OrderedDict[str, Constraint] = OrderedDict()

    def prepare(self, device: torch.device) -> None:
        """Have every encoder ready for an LM on this device, on the engine that will run it."""
        registered = [wish for one in self._classifiers.values() for wish in one.wishes.values()]
        for wish in (*registered, *self._shipped.values()):
            if isinstance(wish, EncoderConstraint):
                wish.prepare(device)

    def constraint(self, spec: TextSpec) -> Constraint:
        """What a specification wishes for; the same object for the same wish."""
        if not spec.wishes:
            return NO_WISH
        self._check(spec)
        wanted = spec.model_dump(exclude=OPTIONS)
        key = json.dumps(wanted, sort_keys=True)
        if key not in self._made:
            self._made[key] = spec.constraint(dict(self._held(spec)))
        self._made.move_to_end(key)
        while len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        return self._made[key]

    def _held(self, spec: TextSpec) -> Iterator[tuple[str, Constraint]]:
        """The parts of a wish that would have to be read if they were not held."""
        if spec.sentiment:
            yield "sentiment", self._shipped[spec.sentiment]
        if spec.detoxify:
            yield "detoxify", self._shipped["detoxify"]
        if spec.classifier and spec.label:
            known = self._classifiers[spec.classifier]
            wish = copy.copy(known.wishes[label_index(known.labels, spec.label)])
            wish.description = spec.description
            yield "classifier", wish
        for name, argument in spec.constraints.items():
            yield f"constraints.{name}", constraint_of(self.plugins[name], argument)

    def _check(self, spec: TextSpec) -> None:
        for wish in spec.wishes:
            if wish not in self.offered:
                offered = ", ".join(self.offered)
                raise SlalomError(f"slalom.{wish} is not open on this server; choose from {offered}", wish)
        if spec.classifier is not None and spec.classifier not in self._classifiers:
            known = ", ".join(self._classifiers)
            raise SlalomError(f"slalom.classifier is {spec.classifier!r}; choose from {known}", "classifier")
        for name in spec.constraints:
            if name not in self.plugins:
                raise SlalomError(
                    f"slalom.constraints has {name!r}; choose from {', '.join(self.plugins)}", "constraints"
                )


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
        if (not isinstance(one.default, str) or one.metadata["choices"])
    }


def check_knobs(sampler: str, given: dict[str, Any]) -> None:
    """Refuse knobs that are not open, and numbers that would take all the server's time and memory."""
    if sampler not in SAMPLERS:
        raise SlalomError(f"slalom.sampler is {sampler!r}; choose from {', '.join(SAMPLERS)}", "sampler")
    known = open_knobs(sampler)
    for name, value in given.items():
        if name not in known:
            raise SlalomError(
                f"slalom.knobs has {name!r}; choose from {', '.join(known)}, those of {sampler} that requests may turn",
                f"knobs.{name}",
            )
        most = known[name]["most"]
        if most is not None and (isinstance(value, (bool, str)) or abs(value) > most):
            raise SlalomError(
                f"slalom.knobs.{name} is {value!r}; it must be a number, at most {most:g}", f"knobs.{name}"
            )


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


def _registered(source: str) -> Registered:
    """Load a classifier, and make a wish of each of its labels."""
    labels = encoder_facts(open_classifier(source)[0]).labels
    made = [classifier(source, name) for name in labels.values()]
    return Registered(labels, {label_index(labels, wish.label_name): wish for wish in made})


def _known_plugins(names: list[str]) -> dict[str, EntryPoint]:
    """What packages registered under these names, imported."""
    known = registered()
    for name in names:
        if name not in known:
            choices = f"choose from {', '.join(known)}" if known else "no installed package registers any"
            raise SlalomError(f"--allow-constraint is {name!r}; {choices}")
        load_kind(known[name])
    return {name: known[name] for name in names}
