"""Lines of OpenAI's batches to fields of a row, and finished texts to lines of its output files."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from slalom.errors import SlalomError
from slalom.frontends.batch.lines import Record
from slalom.frontends.server.wire import ChatBody, CompletionBody
from slalom.frontends.specs import checked, folder_name

ELSEWHERE = (
    "prompt",
    "text",
    "line",
    "id",
    "metadata",
    "model",
    "steps",
)  # of a record: said in another place of an answer
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


class OpenAILine(BaseModel):
    """One request of a batch."""

    model_config = ConfigDict(extra="forbid")

    custom_id: str
    method: Literal["POST"]
    url: Literal["/v1/completions", "/v1/chat/completions"]
    body: dict[str, Any]


class Tokens(NamedTuple):
    """Tokens of one text: what the LM read before it, what it wrote, and what it might have written."""

    read: int
    written: int
    most: int


def row_fields(line: OpenAILine, model: str) -> Record:
    """What a line asks for as fields of a row; unsupported fields and other models are refused by name."""
    body: CompletionBody | ChatBody
    length: int | None = None
    asked: Record
    if line.url == CHATS:
        body = checked(ChatBody, line.body)
        length = body.max_completion_tokens
        asked = {"messages": [{"role": message.role, "content": message.text} for message in body.messages]}
    else:
        body = checked(CompletionBody, line.body)
        asked = {"prompt": _one_prompt(body.prompt)}
    if body.model not in (model, folder_name(model)):
        raise SlalomError(f"there is no model {body.model!r}; this job has {folder_name(model)}")
    if body.stream:
        raise SlalomError("stream is true; a batch has nobody to stream to: leave it out")
    theirs = {
        "length": length if body.max_tokens is None else body.max_tokens,
        "samples": body.n,
        "seed": body.seed,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "temperature": body.temperature,
        "top_p": body.top_p,
    }
    ours = body.slalom.model_dump(exclude_unset=True) if body.slalom else {}
    return asked | ours | {name: value for name, value in theirs.items() if value is not None} | {"id": line.custom_id}


def _one_prompt(prompt: str | list[str]) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) > 1:
        raise SlalomError(f"a line has {len(prompt)} prompts; give each a line of its own")
    return prompt[0]


def answer(line: OpenAILine, number: int, model: str, records: list[Record], tokens: list[Tokens]) -> Record:
    """A line of the output file. Ids and times that differ from run to run are no part of it."""
    chat = line.url == CHATS
    choices = [_choice(chat, index, *one) for index, one in enumerate(zip(records, tokens, strict=True))]
    read, wrote = tokens[0].read, sum(one.written for one in tokens)
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{number}",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": folder_name(model),
        "choices": choices,
        "usage": {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote},
    }
    response = {"status_code": 200, "request_id": f"req_{number}", "body": body}
    return {"id": f"batch_req_{number}", "custom_id": line.custom_id, "response": response, "error": None}


def _choice(chat: bool, index: int, record: Record, tokens: Tokens) -> Record:
    text = record["text"]
    said = {"message": {"role": "assistant", "content": text, "refusal": None}} if chat else {"text": text}
    how = {name: value for name, value in record.items() if name not in ELSEWHERE} | {"drafts": record["steps"]}
    reason = "length" if tokens.written >= tokens.most else "stop"
    return {"index": index, **said, "logprobs": None, "finish_reason": reason, "slalom": how}
