"""Finished texts to answers in OpenAI's shape, each choice with an object of ours that says how to have it again."""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel

from slalom.decoding.sampler import Request
from slalom.frontends.server.drafts import finite
from slalom.frontends.server.intake import Ask
from slalom.frontends.server.wishes import open_knobs
from slalom.frontends.server.worker import Written
from slalom.frontends.specs import DETAILS, TextSpec

Reason = Literal["stop", "length"]


class WishAnswer(BaseModel):
    """How far one constraint is fulfilled."""

    name: str
    score: float | None
    probability: float | None
    satisfied: bool


class SlalomAnswer(BaseModel):
    """How a text came to be. `settings` are fields of a body that asks for it again."""

    settings: dict[str, Any]
    seed: int
    drafts: int
    told: str | None
    constraints: list[WishAnswer]
    satisfied: bool
    score: float | None
    perplexity: float | None
    told_perplexity: float | None


class CompletionChoice(BaseModel):
    """One text."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: Reason
    slalom: SlalomAnswer


class ChatMessage(BaseModel):
    """What the LM answers."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: None = None
    finish_reason: Reason
    slalom: SlalomAnswer


class Usage(BaseModel):
    """Tokens that the LM read, each prompt once, and tokens of the texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """The answer of /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ChatCompletion(BaseModel):
    """The answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Head(BaseModel):
    """What every part of an answer begins with."""

    id: str
    created: int
    model: str


def new_head(kind: str, model: str) -> Head:
    """A fresh id and the time."""
    return Head(id=f"{kind}-{uuid.uuid4().hex}", created=int(time.time()), model=model)


def completion(head: Head, ask: Ask, written: list[Written]) -> Completion:
    """The answer to a completion."""
    choices = [
        CompletionChoice(
            index=one.number, text=one.text.text, finish_reason=one.finish_reason, slalom=how(one, ask.spec)
        )
        for one in written
    ]
    return Completion(**head.model_dump(), choices=choices, usage=usage(written))


def chat_completion(head: Head, ask: Ask, written: list[Written]) -> ChatCompletion:
    """The answer to a chat."""
    choices = [
        ChatChoice(
            index=one.number,
            message=ChatMessage(content=one.text.text),
            finish_reason=one.finish_reason,
            slalom=how(one, ask.spec),
        )
        for one in written
    ]
    return ChatCompletion(**head.model_dump(), choices=choices, usage=usage(written))


def usage(written: list[Written]) -> Usage:
    """The tokens of an answer."""
    prompts = {one.request.prompt for one in written}
    read, wrote = sum(len(prompt.ids) for prompt in prompts), sum(one.tokens for one in written)
    return Usage(prompt_tokens=read, completion_tokens=wrote, total_tokens=read + wrote)


def how(one: Written, spec: TextSpec) -> SlalomAnswer:
    """How a text came to be, and how well it is as wished."""
    text = one.text
    return SlalomAnswer(
        settings=settings_of(one.request, spec),
        seed=text.seed,
        drafts=text.steps,
        told=text.told,
        constraints=[
            WishAnswer(name=wish.name, score=finite(wish.score), probability=wish.probability, satisfied=wish.satisfied)
            for wish in text.constraints
        ],
        satisfied=text.satisfied,
        score=finite(text.score),
        perplexity=finite(text.perplexity),
        told_perplexity=finite(text.told_perplexity),
    )


def steered_text(one: Written) -> dict[str, Any]:
    """A finished text as /v1/steer/stream sends it."""
    plain = dataclasses.asdict(one.text)
    wishes = [wish._asdict() | {"score": finite(wish.score)} for wish in one.text.constraints]
    numbers = {name: finite(value) for name, value in plain.items() if isinstance(value, float)}
    return {"index": one.number} | plain | numbers | {"constraints": wishes}


def settings_of(request: Request, spec: TextSpec) -> dict[str, Any]:
    """Every setting of a text as it was decided: fields of a body that gives the same text again."""
    chosen = request.settings
    sampler: Any = chosen.sampler
    values = {**dataclasses.asdict(sampler), **dataclasses.asdict(chosen.objective)}
    wishes = spec.model_dump(include={*spec.wishes, *DETAILS}, exclude_defaults=True)
    decided = {
        "sampler": chosen.sampler.name,
        "preset": spec.preset,
        "steps": chosen.steps,
        "until": spec.until,
        "select": chosen.choice,
        "free": spec.free,
        "repetition_penalty": spec.repetition_penalty,
        "tell": request.told or False,
        "knobs": {name: values[name] for name in open_knobs(chosen.sampler.name)},
    }
    return {
        "max_tokens": request.limits.length,
        "n": 1,
        "seed": request.seed,
        "stop": list(request.limits.stops),
        "temperature": chosen.temperature,
        "top_p": chosen.top_p,
        "slalom": wishes | decided,
    }
