"""A wish in words to what the LM reads around the prompt: the chat turns that ask for it, or a heading before it."""

from __future__ import annotations

import re

from slalom.errors import SlalomError
from slalom.types import Prompt

Message = dict[str, str]  # a role (system, user, assistant) and a content

# Templates often bring a system message of their own ("You are a helpful assistant named …"), which leaks into texts.
SYSTEM = "You write natural, everyday English."


LONG = 40  # tokens from which on a text is asked for as a long one: at the end of a short one, an LM talks about it


# How an instruct LM talks about its task instead of doing it.
TASK_TALK = re.compile(
    r"\b(?:refer(?:s|ring) to|(?:the|this|right|that) (?:word|phrase|sentence|term)\b|(?:this|short|long) text\b|"
    r"in this context|(?:a|an|the|legal) term (?:that|which|used|for)|you(?:'re| are) (?:asking|looking for)|"
    r"your (?:request|prompt|question)|as an ai\b|(?:help|assist) you with|keyword)",
    re.IGNORECASE,
)


def talks_of_task(prompt: Prompt, text: str) -> bool:
    """Whether the continuation of a text talks about what the LM was told instead; in a chat it may."""
    told = prompt.untold_ids is not None and prompt.asked is None
    return told and TASK_TALK.search(text) is not None


def instruction(words: str, length: int) -> str:
    """Words that go on from "a text that" as a sentence that asks an instruct LM for such a text of so many tokens."""
    return f"Write a {_size(length)} text that {words}."


def heading(words: str, length: int) -> str:
    """The same as a heading for any other LM, which goes on with what it reads: such a text seems to follow."""
    return f"Below is an example of a {_size(length)} text that {words}:"


def _size(length: int) -> str:
    return "long" if length > LONG else "short"


def continuation_turns(asked: str, prompt: str) -> list[Message]:
    """The turns before an answer that begins with the prompt."""
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{asked} Begin with: {prompt}"},
    ]


def chat_turns(asked: str, messages: list[Message]) -> list[Message]:
    """A chat whose answer should be as asked: the wish is a part of the system message."""
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    before = messages[0]["content"] + "\n\n" if len(rest) < len(messages) else ""
    return [{"role": "system", "content": f"{before}{asked}"}, *rest]


def without_system(turns: list[Message]) -> list[Message]:
    """The same for a template that knows no system message: it becomes the beginning of the user's first turn."""
    system, first, *rest = turns
    if first["role"] != "user":
        raise SlalomError("a chat must begin with what the user says")
    return [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *rest]
