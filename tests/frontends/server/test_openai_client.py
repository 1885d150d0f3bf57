"""The official client, unmodified, against a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.frontends.server.conftest import NAME, Serving

SOUP = {"slalom": {"keywords": ["soup"], "steps": 8}}


@pytest.fixture
def official(serving: Serving) -> Iterator[OpenAI]:
    """The client, with a key that the server asks for."""
    with serving(api_key="sesame") as url:
        yield OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0)


def test_it_completes_with_constraints(official: OpenAI) -> None:
    out = official.completions.create(model=NAME, prompt="the food", max_tokens=6, n=2, seed=1, extra_body=SOUP)
    assert [choice.index for choice in out.choices] == [0, 1]
    assert out.usage.completion_tokens == 12
    settings = out.choices[1].slalom["settings"]  # type: ignore[attr-defined]
    slalom = settings.pop("slalom")
    again = official.completions.create(model=NAME, prompt="the food", extra_body={"slalom": slalom}, **settings)
    assert again.choices[0].text == out.choices[1].text


def test_it_chats_with_constraints(official: OpenAI) -> None:
    out = official.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": "the food"}], max_tokens=6, extra_body=SOUP
    )
    assert out.choices[0].message.role == "assistant"
    assert out.choices[0].message.content
    (wish,) = out.choices[0].slalom["constraints"]  # type: ignore[attr-defined]
    assert wish["name"] == "keywords:any(soup)"


def test_it_streams_both(official: OpenAI) -> None:
    whole = official.completions.create(model=NAME, prompt="the food", max_tokens=12, extra_body=SOUP)
    stream = official.completions.create(model=NAME, prompt="the food", max_tokens=12, extra_body=SOUP, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    messages = [{"role": "user", "content": "the food"}]
    asked = {"model": NAME, "messages": messages, "max_tokens": 12, "extra_body": SOUP}
    answer = official.chat.completions.create(**asked)  # type: ignore[call-overload]
    chunks = list(official.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == answer.choices[0].message.content
    assert chunks[-1].usage == answer.usage


def test_it_lists_the_model_and_meets_errors_as_its_own(official: OpenAI) -> None:
    assert [model.id for model in official.models.list()] == [NAME]
    with pytest.raises(openai.BadRequestError, match=r"slalom\.colour") as refused:
        official.completions.create(model=NAME, prompt="x", extra_body={"slalom": {"colour": "red"}})
    assert refused.value.param == "slalom.colour"
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        official.completions.create(model="gpt-5", prompt="x")
    with pytest.raises(openai.AuthenticationError):
        official.with_options(api_key="wrong").models.list()
