"""A request's body to what is asked of the worker: prompts and a specification, within this server's limits."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from slalom.api import CHAT_LENGTH, LENGTH
from slalom.backbone.telling import Message
from slalom.frontends.server.errors import ApiError, shown
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wire import LARGEST_SEED, Asked, ChatBody, CompletionBody, MessageBody, SteerBody
from slalom.frontends.specs import TextSpec

LONGEST_WORD = 200  # characters of a keyword, a label, a stop string, a pattern
MOST_STOPS = 16
NEVER_ALONE = ("strength", "until")  # fields that say how to steer, and nothing else
STEERING = ("sampler", *NEVER_ALONE, "preset", "steps", "select", "knobs")  # the others are echoed of the LM alone too


@dataclass(frozen=True)
class Ask:
    """What one request asks for: its prompts, how their texts should be, and what it wants to learn on the way."""

    prompts: list[str | list[Message]]
    spec: TextSpec
    compare: bool = False  # the LM's own text too
    progress: bool = False  # how far it is
    drafts: bool = False  # every draft


def read_completion(body: CompletionBody, name: str, settings: ServeSpec) -> Ask:
    """A completion's body."""
    prompts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    return _checked(body, list(prompts), body.max_tokens, name, settings)


def read_chat(body: ChatBody, name: str, settings: ServeSpec) -> Ask:
    """A chat's body."""
    return _checked(body, [_chat(body.messages)], _one_length(body), name, settings)


def read_steer(body: SteerBody, name: str, settings: ServeSpec) -> Ask:
    """The body of a request for drafts: a prompt, or messages."""
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either a prompt or messages", "prompt", "invalid_value")
    if body.stream is False:
        raise ApiError(400, "stream is False; drafts are always streamed: leave it out", "stream", "invalid_value")
    prompt = body.prompt if body.messages is None else _chat(body.messages)
    assert prompt is not None
    ask = _checked(body, [prompt], _one_length(body), name, settings)
    return Ask(ask.prompts, ask.spec, bool(body.compare), drafts=True)


def _chat(messages: list[MessageBody]) -> list[Message]:
    return [{"role": message.role, "content": message.text} for message in messages]


def _one_length(body: ChatBody | SteerBody) -> int | None:
    """The length of an answer, which has two names."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        message = "max_tokens and max_completion_tokens say the same; give one of them"
        raise ApiError(400, message, "max_completion_tokens", "invalid_value")
    return body.max_completion_tokens if body.max_tokens is None else body.max_tokens


def _checked(
    body: Asked, prompts: list[str | list[Message]], length: int | None, name: str, settings: ServeSpec
) -> Ask:
    if body.model != name:
        raise ApiError(404, f"there is no model {body.model!r}; this server has {name}", "model", "model_not_found")
    if body.stream_options is not None and body.stream is not True:
        raise ApiError(400, "stream_options are for streams; give stream true too", "stream_options", "invalid_value")
    usual = LENGTH if isinstance(prompts[0], str) else CHAT_LENGTH
    spec = _spec(body, min(usual, settings.max_tokens) if length is None else length)
    _check_prompts(prompts, spec, settings)
    _check_spec(spec, settings)
    return Ask(prompts, spec, progress=bool(body.stream))


def _spec(body: Asked, length: int) -> TextSpec:
    """OpenAI's fields and ours as one specification; without a wish, the LM alone writes."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop
    theirs: dict[str, Any] = {
        "length": length,
        "samples": body.n,
        "seed": body.seed,
        "stop": stop,
        "temperature": body.temperature,
        "top_p": body.top_p,
    }
    ours = body.slalom.model_dump(exclude_unset=True) if body.slalom else {}
    try:
        spec = TextSpec.model_validate(ours | {field: value for field, value in theirs.items() if value is not None})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"slalom: {message}", "slalom", "invalid_value") from None
    for field, needs in (("description", "classifier"), ("mode", "keywords")):
        if field in ours and not getattr(spec, needs):
            message = f"slalom.{field} says more about slalom.{needs}, which is not given"
            raise ApiError(400, message, f"slalom.{field}", "invalid_value")
    try:
        spec.check_weights()
    except ValueError as error:
        raise ApiError(400, f"slalom.{error}", "slalom.weights", "invalid_value") from None
    if spec.wishes:
        return spec
    for field in NEVER_ALONE if ours.get("sampler") == "none" else STEERING:
        if ours.get(field) not in (None, {}):
            message = f"slalom.{field} is {shown(ours[field])}, but there is nothing to steer towards; name a wish"
            raise ApiError(400, message, f"slalom.{field}", "invalid_value")
    return spec.model_copy(update={"sampler": "none"})


def _check_prompts(prompts: list[str | list[Message]], spec: TextSpec, settings: ServeSpec) -> None:
    texts = len(prompts) * spec.samples
    _at_most("n", "prompts times n", texts, settings.max_texts)
    if (last := spec.seed + spec.samples - 1) > LARGEST_SEED:
        message = f"the seed of the last text is {last}; it must be at most {LARGEST_SEED}"
        raise ApiError(400, message, "seed", "invalid_value")
    for prompt in prompts:
        said = [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
        field = "prompt" if isinstance(prompt, str) else "messages"
        _at_most(field, f"the length of {field} in characters", sum(map(len, said)), settings.max_prompt)


def _check_spec(spec: TextSpec, settings: ServeSpec) -> None:
    """Refuse what asks for more than this server gives."""
    _at_most("max_tokens", "max_tokens", spec.length or 0, settings.max_tokens)
    _at_most("slalom.steps", "slalom.steps", spec.steps or 0, settings.max_steps)
    wishes = len(spec.wishes) + max(0, len(spec.constraints) - 1)
    _at_most("slalom", "the number of wishes", wishes, settings.max_constraints)
    words = [*spec.keywords, *spec.avoid, *(spec.topic.split(",") if spec.topic else [])]
    _at_most("slalom.keywords", "the number of words in keywords, avoid and topic", len(words), settings.max_words)
    _at_most("stop", "the number of stop strings", len(spec.stop), MOST_STOPS)
    _at_most("slalom.strength", "slalom.strength", spec.strength or 0, 1000)
    _at_most("slalom.repetition_penalty", "slalom.repetition_penalty", spec.repetition_penalty, 100)
    short = [spec.label, spec.regex, spec.description, spec.sampler, spec.preset, *spec.knobs, *spec.constraints]
    for text in (*words, *spec.stop, *(one for one in short if one is not None)):
        _at_most("slalom", f"the length of {text[:20]!r}… in characters", len(text), LONGEST_WORD)
    free = [spec.similar, spec.tell if isinstance(spec.tell, str) else None]
    for text in itertools.chain((one for one in free if one is not None), spec.constraints.values()):
        _at_most("slalom", f"the length of {text[:20]!r}… in characters", len(text), settings.max_prompt)


def _at_most(param: str, what: str, value: float, most: float) -> None:
    if value > most:
        message = f"{what} is {shown(value)}; this server takes at most {most:g}"
        raise ApiError(400, message, param, "limit_exceeded")
