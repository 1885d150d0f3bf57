"""One specification of a text, checked once, for the command line, TOML files, batches and HTTP alike."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slalom.backbone.names import EngineName
from slalom.errors import SlalomError

if TYPE_CHECKING:
    from slalom.api import Options
    from slalom.constraints.constraint import Constraint

S = TypeVar("S", bound=BaseModel)
Weight = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]  # 0 would still count towards `satisfied`

# Any one of these fields is something to steer towards, by the flag beside it.
WISHES = {
    "sentiment": "--sentiment",
    "keywords": "--keywords",
    "detoxify": "--detoxify",
    "topic": "--topic",
    "avoid": "--avoid",
    "classifier": "--classifier with --label",
    "similar": "--similar",
    "regex": "--regex",
    "whole_sentences": "--whole-sentences",
    "constraints": "--constraint",
}
DETAILS = ("mode", "label", "description", "weights")  # fields that say more about a wish


class TextSpec(BaseModel):
    """What one text should be like and how it is written: the wishes, and the options of `steer`."""

    model_config = ConfigDict(extra="forbid")

    chat: bool = Field(False, description="a text is what the user says, to be answered")
    sentiment: Literal["positive", "neutral", "negative"] | None = Field(
        None, description="the tone of the text: positive, neutral or negative"
    )
    detoxify: bool = Field(False, description="keep the continuation from being toxic, whatever the prompt is")
    keywords: list[str] = Field(
        [], description="words the continuation should contain, comma-separated on the command line"
    )
    mode: Literal["any", "all"] = Field(
        "any", description="whether any keyword will do (the default) or all must appear"
    )
    topic: str | None = Field(
        None, min_length=1, description="a topic (computer, legal, space, …), or words of one, comma-separated"
    )
    avoid: list[str] = Field(
        [], description="words the continuation must never contain, comma-separated on the command line"
    )
    classifier: str | None = Field(None, min_length=1, description="a classifier's folder or hub name")
    label: str | None = Field(None, min_length=1, description="the label that classifier should give")
    description: str | None = Field(None, description="that label in words after 'a text that': 'is friendly'")
    similar: str | None = Field(None, min_length=1, description="a text to be similar to in meaning")
    regex: str | None = Field(
        None, min_length=1, description="a regular expression the continuation should match somewhere"
    )
    whole_sentences: bool = Field(False, description="end the continuation at the end of a sentence")
    constraints: dict[str, str] = Field(
        {}, description="constraints of other packages, NAME=ARGUMENT each; see slalom ls constraints"
    )
    weights: dict[str, Weight] = Field(
        {}, description="a wish's weight beside the others and fluency, sentiment=2 say (1 unless said)"
    )
    sampler: str = Field("climb", description="the method that steers (default climb); see slalom ls samplers")
    preset: str = Field(
        "default", description="settings to start from: default or thorough; other samplers' own: slalom ls presets"
    )
    strength: float | None = Field(
        None, ge=0, description="how hard to pull: a factor, 1 unless said; for lm-steer the strength itself, 5 say"
    )
    steps: int | None = Field(None, ge=1, description="drafts per text at the most; a step that was begun is finished")
    length: int | None = Field(None, ge=1, description="new tokens per text: 20, in a chat 128")
    free: bool = Field(False, description="let a text end before that where the model ends it")
    stop: list[str] = Field([], description="a string that a text ends before; may be repeated")
    until: float | None = Field(None, gt=0, le=1, description="stop once satisfied to this degree, 0.99 say")
    select: Literal["score", "joint", "latest"] | None = Field(
        None, description="the best draft by score, by score and fluency (joint), or the latest"
    )
    temperature: float | None = Field(None, ge=0, description="draw tokens at this temperature; 0 takes the likeliest")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from the likeliest tokens that make up this much")
    repetition_penalty: float = Field(
        1.2, ge=1, description="penalty on tokens already generated (default 1.2; 1 is none)"
    )
    tell: bool | str = Field(
        "auto",
        description="tell the model the wish too (default: where the wish has words), or the sentence to tell it",
    )
    samples: int = Field(1, ge=1, description="texts per prompt (default 1)")
    seed: int = Field(0, ge=0, description="seed of a prompt's first sample (default 0); the next has the next seed")
    knobs: dict[str, Any] = Field({}, description="a knob of the sampler, tau=0.2 say; see slalom ls samplers")

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if (self.classifier is None) != (self.label is None):
            raise ValueError("a classifier and its label go together: give both --classifier and --label")
        return self

    @property
    def wishes(self) -> list[str]:
        """The fields that say what to steer towards."""
        return [wish for wish in WISHES if getattr(self, wish)]

    def check_weights(self) -> None:
        """Refuse, with a ValueError, a weight that would change nothing."""
        asked = [wish for wish in self.wishes if wish not in ("avoid", "constraints")]
        asked += [f"constraints.{name}" for name in self.constraints]
        for name in self.weights:
            if name == "avoid":
                raise ValueError("weights has 'avoid', but no draft ever holds those words: leave it out")
            if name not in asked:
                choices = f"weigh any of {', '.join(asked)}" if asked else "leave it out"
                raise ValueError(f"weights has {name!r}, which is not asked for; ask for it too, or {choices}")

    def options(self) -> Options:
        """What `steer` and `requests` take besides prompts and wish."""
        return cast("Options", {name: getattr(self, name) for name in type(self).model_fields if name in OPTIONS})

    def constraint(self, made: Mapping[str, Constraint] | None = None) -> Constraint:
        """The weighted sum of all constraints that were given.

        `made` are those that exist already: by the name of their field, `sentiment` or `constraints.rhyme` say, as in
        `weights`.
        """
        from slalom.constraints import (
            Avoid,
            EndsWithSentence,
            Keywords,
            Regex,
            Sentiment,
            Similar,
            Topic,
            Toxicity,
            classifier,
        )
        from slalom.constraints.plugins import registered_constraint

        made = made or {}
        parts: dict[str, Constraint] = {}
        if self.sentiment:
            parts["sentiment"] = made.get("sentiment") or Sentiment(self.sentiment)
        if self.detoxify:
            parts["detoxify"] = made.get("detoxify") or Toxicity("low")
        if self.keywords:
            parts["keywords"] = Keywords(self.keywords, self.mode)
        if self.topic:
            parts["topic"] = Topic(self.topic)
        if self.avoid:
            parts["avoid"] = Avoid(self.avoid)
        if self.classifier and self.label:
            own = made.get("classifier")
            parts["classifier"] = own or classifier(self.classifier, self.label, description=self.description)
        if self.similar:
            parts["similar"] = Similar(self.similar)
        if self.regex:
            parts["regex"] = Regex(self.regex)
        if self.whole_sentences:
            parts["whole_sentences"] = EndsWithSentence()
        for name, argument in self.constraints.items():
            key = f"constraints.{name}"
            parts[key] = made.get(key) or registered_constraint(name, argument)
        whole, *others = [self._weighed(name, part) for name, part in parts.items()]
        for part in others:
            whole = whole + part
        return whole

    def _weighed(self, name: str, part: Constraint) -> Constraint:
        weight = self.weights.get(name, 1.0)
        return part if weight == 1 else weight * part


OPTIONS = set(TextSpec.model_fields) - {*WISHES, *DETAILS}  # fields that are options of `steer`


class LoadSpec(BaseModel):
    """Which language model, and what runs it."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str | None = Field(None, description="an embedded model, a folder or a hub name")
    engine: EngineName = Field("auto", description="what runs the model: auto, torch or openvino")
    device: str | None = Field(None, description="where the model runs: cpu, cuda, cuda:1, mps; the best if left out")
    dtype: str | None = Field(None, description="its precision: float32, bfloat16, float16; the best if left out")


class GenerateSpec(LoadSpec, TextSpec):
    """What `slalom generate` is asked for: prompts, what their texts should be like, and the model that writes."""

    prompts: list[str | list[dict[str, str]]] = Field(
        min_length=1, description="the texts to continue, or chats: lists of messages with a role and a content"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if not self.wishes:
            raise ValueError(f"nothing to steer towards: give any of {', '.join(WISHES.values())}")
        self.check_weights()
        return self


def make_spec(given: dict[str, Any], file: Path | None = None) -> GenerateSpec:
    """A checked specification; what was given overrides what a TOML file says."""
    fields = _read_toml(file) if file else {}
    fields |= {key: value for key, value in given.items() if value is not None}
    if "prompts" not in fields:
        raise SlalomError("no prompt given; give one in quotes, a --prompts-file, or lines on standard input")
    return checked(GenerateSpec, fields)


def checked(spec: type[S], fields: dict[str, Any]) -> S:
    """Fields as a specification; the first that is wrong is refused with a SlalomError."""
    try:
        return spec.model_validate(fields)
    except ValidationError as error:
        raise SlalomError(first_error(error)) from None


def folder_name(model: str) -> str:
    """The last part of a model's path, also of `.`; of a hub name the part after its owner."""
    return Path(os.path.abspath(model)).name


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlalomError(f"there is no file {file}") from None
    except (OSError, ValueError) as error:
        raise SlalomError(f"{file} cannot be read as TOML ({error})") from None


def first_error(error: ValidationError) -> str:
    """The first validation error in one line, naming the field, the value and the rule."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    field = ".".join(map(str, first["loc"]))
    return f"{field} is {first['input']!r}; {message[:1].lower()}{message[1:]}"
