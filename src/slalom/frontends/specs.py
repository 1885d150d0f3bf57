"""One specification of a generation, checked once, for the command line, a TOML file and Python alike."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slalom.errors import SlalomError

if TYPE_CHECKING:
    from slalom.constraints.constraint import Constraint

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


class GenerateSpec(BaseModel):
    """What to write and what it should be like."""

    model_config = ConfigDict(extra="forbid")

    prompts: list[str | list[dict[str, str]]] = Field(
        min_length=1, description="the texts to continue, or chats: lists of messages with a role and a content"
    )
    chat: bool = Field(False, description="a text is what the user says, to be answered")
    sentiment: Literal["positive", "neutral", "negative"] | None = Field(None, description="the tone of the text")
    detoxify: bool = Field(False, description="keep the continuation from being toxic, whatever the prompt is")
    keywords: list[str] = Field([], description="words the continuation should contain")
    mode: Literal["any", "all"] = Field("any", description="whether any keyword will do or all must appear")
    topic: str | None = Field(None, description="a topic by name, or words of one, comma-separated")
    avoid: list[str] = Field([], description="words the continuation must never contain")
    classifier: str | None = Field(None, description="a classifier's folder or hub name")
    label: str | None = Field(None, description="the label that classifier should give")
    description: str | None = Field(None, description="that label in words after 'a text that': 'is friendly'")
    similar: str | None = Field(None, description="a text to be similar to in meaning")
    regex: str | None = Field(None, description="a regular expression the continuation should match somewhere")
    whole_sentences: bool = Field(False, description="end the continuation at the end of a sentence")
    constraints: dict[str, str] = Field({}, description="constraints of other packages, by name, and their arguments")
    model: str | None = Field(None, description="an embedded model, a folder or a hub name")
    engine: Literal["auto", "torch", "openvino"] = Field("auto", description="what runs the model")
    device: str | None = Field(None, description="where the model runs: cpu, cuda, cuda:1, mps; the best if left out")
    dtype: str | None = Field(None, description="its precision: float32, bfloat16, float16; the best if left out")
    sampler: str = Field("climb", description="the method that steers")
    preset: str = Field("default", description="settings to start from")
    strength: float | None = Field(None, ge=0, description="how hard to pull, in the sampler's own units")
    steps: int | None = Field(None, ge=1, description="drafts per text at the most, the unsteered one included")
    length: int | None = Field(None, ge=1, description="new tokens per text: 20, in a chat 128")
    free: bool = Field(False, description="let a text end before that where the model ends it")
    stop: list[str] = Field([], description="strings that a text ends before")
    until: float | None = Field(None, gt=0, le=1, description="stop once satisfied to this degree")
    select: Literal["score", "joint", "latest"] | None = Field(
        None, description="best draft by f, by f and fluency together, or the latest"
    )
    temperature: float | None = Field(None, ge=0, description="draw tokens at this temperature; 0 takes the likeliest")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from the likeliest tokens that make up this much")
    repetition_penalty: float = Field(1.2, ge=1, description="penalty on tokens already generated; 1 is none")
    tell: bool | str = Field(
        "auto",
        description="tell the LM the wish too: auto (an instruct LM), true, false, or the sentence to ask with",
    )
    samples: int = Field(1, ge=1, description="texts per prompt")
    seed: int = Field(0, ge=0, description="seed of a prompt's first sample; the next has the next seed")
    knobs: dict[str, Any] = Field({}, description="single knobs of the sampler")

    @model_validator(mode="after")
    def _complete(self) -> GenerateSpec:
        if (self.classifier is None) != (self.label is None):
            raise ValueError("a classifier and its label go together: give both --classifier and --label")
        if not any(getattr(self, wish) for wish in WISHES):
            raise ValueError(f"nothing to steer towards: give any of {', '.join(WISHES.values())}")
        return self

    def constraint(self) -> Constraint:
        """The sum of all constraints that were given."""
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

        parts: list[Constraint] = []
        if self.sentiment:
            parts.append(Sentiment(self.sentiment))
        if self.detoxify:
            parts.append(Toxicity("low"))
        if self.keywords:
            parts.append(Keywords(self.keywords, self.mode))
        if self.topic:
            parts.append(Topic(self.topic))
        if self.avoid:
            parts.append(Avoid(self.avoid))
        if self.classifier and self.label:
            parts.append(classifier(self.classifier, self.label, description=self.description))
        if self.similar:
            parts.append(Similar(self.similar))
        if self.regex:
            parts.append(Regex(self.regex))
        if self.whole_sentences:
            parts.append(EndsWithSentence())
        parts += [registered_constraint(name, argument) for name, argument in self.constraints.items()]
        whole = parts[0]
        for part in parts[1:]:
            whole = whole + part
        return whole


def make_spec(given: dict[str, Any], file: Path | None = None) -> GenerateSpec:
    """A checked specification; what was given overrides what a TOML file says."""
    fields = _read_toml(file) if file else {}
    fields |= {key: value for key, value in given.items() if value is not None}
    if "prompts" not in fields:
        raise SlalomError("no prompt given; give one in quotes, a --prompts-file, or lines on standard input")
    try:
        return GenerateSpec.model_validate(fields)
    except ValidationError as error:
        raise SlalomError(_first_error(error)) from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SlalomError(f"there is no file {file}") from None
    except (OSError, ValueError) as error:
        raise SlalomError(f"{file} cannot be read as TOML ({error})") from None


def _first_error(error: ValidationError) -> str:
    """The first validation error in one line, naming the field, the value and the rule."""
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    field = ".".join(map(str, first["loc"]))
    return f"{field} is {first['input']!r}; {message[:1].lower()}{message[1:]}"
