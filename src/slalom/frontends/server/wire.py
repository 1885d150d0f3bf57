"""The bodies of requests: OpenAI's fields, and one object of ours, `slalom`, with the fields of a text's specification.

What this server cannot do is listed too, with the value that means "off": anything else is refused by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from slalom.frontends.specs import TextSpec

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
LARGEST_SEED = 2**53 - 1  # what every JSON reader takes exactly


def _whole(given: Any) -> Any:
    """JSON does not tell 2.0 from 2."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


Whole = Annotated[int, BeforeValidator(_whole)]

# Fields of a specification that OpenAI's own say, and how.
ELSEWHERE = {
    "length": "give max_tokens beside the slalom object",
    "samples": "give n beside the slalom object",
    "seed": "give seed beside the slalom object",
    "stop": "give stop beside the slalom object",
    "temperature": "give temperature beside the slalom object",
    "top_p": "give top_p beside the slalom object",
    "chat": "give messages, not a prompt",
}


class TextFormat(BaseModel):
    """Plain text."""

    model_config = STRICT

    type: Literal["text"]


_ZERO = Annotated[float, Field(ge=0, le=0)]
_EMPTY_OBJECT = Annotated[dict[str, Any], Field(max_length=0)]
_EMPTY_LIST = Annotated[list[Any], Field(max_length=0)]

# OpenAI's fields that this server does not act on: the type of what means "off" there besides null, and its spelling.
OFF: dict[str, tuple[Any, str]] = {
    "audio": (Literal[None], "null"),
    "best_of": (Annotated[int, Field(ge=1, le=1)], "1"),
    "echo": (Literal[False], "false"),
    "frequency_penalty": (_ZERO, "0"),
    "function_call": (Literal["none"], '"none"'),
    "functions": (_EMPTY_LIST, "[]"),
    "logit_bias": (_EMPTY_OBJECT, "{}"),
    "logprobs": (Literal[False], "false"),
    "metadata": (_EMPTY_OBJECT, "{}"),
    "modalities": (Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)], '["text"]'),
    "parallel_tool_calls": (Literal[False], "false"),
    "prediction": (Literal[None], "null"),
    "presence_penalty": (_ZERO, "0"),
    "reasoning_effort": (Literal["none"], '"none"'),
    "response_format": (TextFormat, '{"type": "text"}'),
    "service_tier": (Literal["auto", "default"], '"auto"'),
    "store": (Literal[False], "false"),
    "suffix": (Literal[""], '""'),
    "tool_choice": (Literal["none"], '"none"'),
    "tools": (_EMPTY_LIST, "[]"),
    "top_logprobs": (Annotated[int, Field(ge=0, le=0)], "0"),
    "web_search_options": (Literal[None], "null"),
}
UNSUPPORTED = {name: f"not supported: leave it out, or give {off}" for name, (_, off) in OFF.items()}


def _refusing(*names: str) -> Any:
    """A base of bodies in which these fields may only be off."""
    fields: Any = {name: (OFF[name][0] | None, Field(None, description=UNSUPPORTED[name])) for name in names}
    return create_model("Refusing", __config__=STRICT, **fields)


if TYPE_CHECKING:

    class SlalomBody(BaseModel):
        """What a text should be like and how it is written."""
else:
    SlalomBody = create_model(
        "SlalomBody",
        __config__=STRICT,
        __doc__="What a text should be like and how it is written.",
        **{
            name: (field.annotation, field)
            for name, field in TextSpec.model_fields.items()
            if name not in (*ELSEWHERE, "classifier", "knobs", "steps")
        },
        classifier=(
            str | None,
            Field(None, min_length=1, description="a classifier by the name this server gave it; see /props"),
        ),
        steps=(Whole | None, TextSpec.model_fields["steps"]),
        knobs=(
            dict[str, bool | int | float | str],
            Field({}, description="knobs of the sampler by name; see /props"),
        ),
    )


class StreamOptions(BaseModel):
    """What a stream brings besides the text."""

    model_config = STRICT

    include_usage: bool | None = Field(None, description="end with a chunk that counts the tokens")
    include_obfuscation: Literal[False] | None = None


class Asked(_refusing("frequency_penalty", "presence_penalty", "logit_bias")):  # type: ignore[misc]
    """What completions and chats share."""

    model_config = STRICT

    model: str = Field(description="the name of the model this server has; see /v1/models")
    max_tokens: Whole | None = Field(None, ge=1, description="new tokens of a text: 20, in a chat 128, unless said")
    n: Whole | None = Field(None, ge=1, description="texts a prompt (default 1)")
    seed: Whole | None = Field(
        None, ge=0, le=LARGEST_SEED, description="seed of a prompt's first text (default 0); the next has the next seed"
    )
    stop: str | list[str] | None = Field(None, description="strings that a text ends before")
    stream: bool | None = Field(None, description="send server-sent events, the last of them [DONE]")
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(
        None, ge=0, le=2, description="draw tokens at this temperature; 0 takes the likeliest; the preset's unless said"
    )
    top_p: float | None = Field(
        None, gt=0, le=1, description="draw from the likeliest tokens that make up this much; the preset's unless said"
    )
    user: str | None = Field(None, max_length=256, description="who asks, for the log")
    slalom: SlalomBody | None = Field(None, description="what the texts should be like; nothing: the LM alone writes")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        """JSON can spell half a character; no tokenizer reads one, and no answer could repeat it."""
        try:
            json.dumps(given, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the body holds half of a surrogate pair, which is no text") from None
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        return given


class CompletionBody(Asked, _refusing("best_of", "echo", "logprobs", "suffix")):  # type: ignore[misc]
    """A request for texts that go on from prompts."""

    prompt: str | Annotated[list[str], Field(min_length=1)] = Field(description="one text to continue, or several")


class TextPart(BaseModel):
    """A part of a message."""

    model_config = STRICT

    type: Literal["text"]
    text: str


class MessageBody(BaseModel):
    """One message of a chat."""

    model_config = STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] = Field(description="a text, or parts of one")
    name: None = Field(None, description="not supported: leave it out")
    refusal: None = Field(None, description="not supported: leave it out")
    tool_calls: None = Field(None, description="not supported: leave it out")

    @property
    def text(self) -> str:
        """The whole content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


_NOT_IN_CHATS = (
    *("logprobs", "top_logprobs", "functions", "function_call", "tools", "tool_choice", "parallel_tool_calls"),
    *("response_format", "modalities", "audio", "prediction", "reasoning_effort", "web_search_options"),
    *("store", "metadata", "service_tier"),
)


class ChatBody(Asked, _refusing(*_NOT_IN_CHATS)):  # type: ignore[misc]
    """A request for answers in a chat."""

    messages: list[MessageBody] = Field(min_length=1, description="what was said, to be answered")
    max_completion_tokens: Whole | None = Field(None, ge=1, description="the same as max_tokens")


class SteerBody(Asked, _refusing("best_of", "echo", "suffix", *_NOT_IN_CHATS)):  # type: ignore[misc]
    """A request for texts whose drafts are shown: a completion's or a chat's, of one prompt."""

    prompt: str | None = Field(None, description="a text to continue; or give messages")
    messages: list[MessageBody] | None = Field(
        None, min_length=1, description="a chat to be answered; or give a prompt"
    )
    max_completion_tokens: Whole | None = Field(None, ge=1, description="the same as max_tokens")
    compare: bool | None = Field(None, description="write the LM's own text too, neither told nor steered")
