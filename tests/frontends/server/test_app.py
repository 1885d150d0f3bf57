"""The routes, as a careful and a careless client would use them."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from slalom.api import SteerableModel, Text
from slalom.constraints import EndsWithSentence, Keywords
from slalom.decoding import SAMPLERS
from slalom.decoding.scheduler import Finished
from slalom.frontends.server import app as app_module
from slalom.frontends.server.app import make_app
from slalom.frontends.server.errors import ApiError
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.server.wire import OFF
from slalom.frontends.server.wishes import open_knobs
from slalom.frontends.server.worker import Worker, api_error, check_work
from tests.frontends.server.conftest import LOCALHOST, NAME

SOUP = {"keywords": ["soup"], "steps": 8}
ASK = {"model": NAME, "prompt": "the food", "max_tokens": 6, "slalom": SOUP}
SAY = {"model": NAME, "messages": [{"role": "user", "content": "the food"}], "max_tokens": 6, "slalom": SOUP}


def complete(client: TestClient, **changed: Any) -> dict[str, Any]:
    """The answer to a completion that is right."""
    answer = client.post("/v1/completions", json=ASK | changed)
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(client: TestClient, status: int = 400, path: str = "/v1/completions", **changed: Any) -> dict[str, Any]:
    """The error that a request gets."""
    answer = client.post(path, json=(SAY if "chat" in path else ASK) | changed)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_a_completion_has_openais_shape_and_the_text_that_steer_writes(
    client: TestClient, chatty: SteerableModel
) -> None:
    answer = complete(client, n=2, seed=3)
    assert answer["object"] == "text_completion"
    assert answer["model"] == NAME
    assert answer["id"].startswith("cmpl-")
    expected = chatty.steer("the food", Keywords(["soup"]), length=6, steps=8, samples=2, seed=3).rows
    assert [choice["text"] for choice in answer["choices"]] == [row.text for row in expected]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    for choice, row in zip(answer["choices"], expected, strict=True):
        assert choice["finish_reason"] == "length"
        told = choice["slalom"]
        assert (told["seed"], told["drafts"], told["told"]) == (row.seed, row.steps, row.told)
        assert told["constraints"] == [wish._asdict() for wish in row.constraints]
        assert told["perplexity"] == pytest.approx(row.perplexity)
    prompts = chatty.requests("the food", Keywords(["soup"]), length=6)
    assert answer["usage"] == {
        "prompt_tokens": len(prompts[0].prompt.ids),
        "completion_tokens": 12,
        "total_tokens": len(prompts[0].prompt.ids) + 12,
    }


def test_a_weighed_wish_gives_the_text_that_python_writes(client: TestClient, chatty: SteerableModel) -> None:
    wish = 0.5 * Keywords(["soup"]) + 3 * EndsWithSentence()
    asked = SOUP | {"whole_sentences": True, "weights": {"keywords": 0.5, "whole_sentences": 3}}
    (choice,) = complete(client, slalom=asked)["choices"]
    (row,) = chatty.steer("the food", wish, length=6, steps=8).rows
    assert (choice["text"], choice["slalom"]["score"]) == (row.text, pytest.approx(row.score))
    assert choice["slalom"]["settings"]["slalom"]["weights"] == asked["weights"]


def test_a_whole_number_may_be_written_with_a_point(client: TestClient) -> None:
    wish = '{"topic": "soup", "steps": 1.0}'
    body = f'{{"model": "llama-tied", "prompt": "the food", "max_tokens": 6.0, "n": 2.0, "slalom": {wish}}}'
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert len(answer.json()["choices"]) == 2


def test_several_prompts_are_answered_prompt_by_prompt(client: TestClient) -> None:
    together = complete(client, prompt=["the food", "we"], n=2)["choices"]
    alone = [choice for prompt in ("the food", "we") for choice in complete(client, prompt=prompt, n=2)["choices"]]
    assert [choice["text"] for choice in together] == [choice["text"] for choice in alone]
    assert [choice["index"] for choice in together] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "changed",
    [
        {"slalom": SOUP | {"strength": 2.0}},
        {"slalom": SOUP | {"sampler": "dab", "strength": 0.5, "until": 0.9}},
        {"slalom": SOUP | {"sampler": "bolt", "steps": 3}},
        {"slalom": SOUP | {"sampler": "best-of-n", "steps": 3}, "top_p": 0.9},
        {"slalom": {"classifier": "taste", "label": "good", "description": "is tasty", "steps": 8}},
        {
            "slalom": {
                "topic": "soup,rain",
                "avoid": ["cold"],
                "whole_sentences": True,
                "preset": "thorough",
                "steps": 8,
            }
        },
        {"slalom": SOUP | {"tell": False, "knobs": {"width": 2, "fluency": 0.5}}, "stop": ["o"]},
        {"slalom": SOUP | {"whole_sentences": True, "weights": {"keywords": 0.5, "whole_sentences": 3}}},
        {"slalom": SOUP, "max_tokens": 40, "seed": 5},
        {"slalom": None, "temperature": 0.8, "seed": 2},
    ],
    ids=lambda changed: str(changed["slalom"])[:60],
)
def test_the_echoed_settings_give_the_same_text_again(client: TestClient, changed: dict[str, Any]) -> None:
    for choice in complete(client, n=2, **changed)["choices"]:
        settings = choice["slalom"]["settings"]
        (again,) = client.post("/v1/completions", json=ASK | settings).json()["choices"]
        assert again["text"] == choice["text"]
        for same in ("settings", "seed", "drafts", "told", "satisfied"):
            assert again["slalom"][same] == choice["slalom"][same]


WISHES: dict[str, dict[str, Any]] = {
    "keywords": {"keywords": ["soup"]},
    "classifier": {"classifier": "taste", "label": "good"},
}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize(
    ("sampler", "preset"),
    [
        (name, preset)
        for name, kind in SAMPLERS.items()
        if name != "lm-steer"  # no steer is shipped for the tiny LM
        for preset in kind.presets(Keywords(["soup"]))
    ],
)
def test_every_sampler_and_preset_echoes_settings_that_can_be_sent_again(
    client: TestClient, sampler: str, preset: str, wish: str
) -> None:
    quick = {"inner": 2} if "inner" in open_knobs(sampler) else {}
    asked = WISHES[wish] | {"sampler": sampler, "preset": preset, "steps": 2, "knobs": quick}
    (choice,) = complete(client, slalom=asked)["choices"]
    (again,) = complete(client, **choice["slalom"]["settings"])["choices"]
    assert (again["text"], again["slalom"]) == (choice["text"], choice["slalom"])


def test_the_echoed_settings_of_a_chat_give_the_same_answer_again(client: TestClient) -> None:
    (choice,) = client.post("/v1/chat/completions", json=SAY | {"max_tokens": 40, "seed": 3}).json()["choices"]
    again = client.post("/v1/chat/completions", json=SAY | choice["slalom"]["settings"])
    assert again.json()["choices"] == [choice]


@pytest.mark.parametrize(
    ("sampler", "knob", "most"), [("mucola", "wait", 50), ("rerank", "top_k", 200), ("climb", "width", 32)]
)
def test_a_whole_number_knob_may_be_what_a_preset_sets_or_8_times_its_default(
    client: TestClient, sampler: str, knob: str, most: int
) -> None:
    listed = {one["name"]: one["knobs"] for one in client.get("/props").json()["samplers"]}
    assert {one["name"]: one["most"] for one in listed[sampler]}[knob] == most
    asked = SOUP | {"sampler": sampler, "steps": 1}
    complete(client, slalom=asked | {"knobs": {knob: most}})
    assert f"at most {most}" in refused(client, slalom=asked | {"knobs": {knob: most + 1}})["message"]


def test_without_a_wish_the_lm_alone_writes(client: TestClient, chatty: SteerableModel) -> None:
    answer = client.post("/v1/completions", json={"model": NAME, "prompt": "the food"}).json()
    (row,) = chatty.steer("the food", Keywords(["soup"]), sampler="none", tell=False).rows
    (choice,) = answer["choices"]
    assert choice["text"] == row.text
    assert choice["slalom"]["constraints"] == []
    assert choice["slalom"]["told"] is None
    assert answer["usage"]["completion_tokens"] == 20
    assert "nothing to steer towards" in refused(client, slalom={"sampler": "climb"})["message"]


def test_a_chat_is_answered(client: TestClient, chatty: SteerableModel) -> None:
    answer = client.post("/v1/chat/completions", json=SAY).json()
    (row,) = chatty.steer([SAY["messages"]], Keywords(["soup"]), length=6, steps=8).rows
    (choice,) = answer["choices"]
    assert answer["object"] == "chat.completion"
    assert choice["message"] == {"role": "assistant", "content": row.text, "refusal": None}
    parts = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "food"}]}]
    again = client.post("/v1/chat/completions", json=SAY | {"messages": parts}).json()
    assert again["choices"][0]["message"] == choice["message"]


@pytest.mark.parametrize(
    ("changed", "param", "message"),
    [
        ({"colour": "red"}, "colour", "unknown field 'colour'"),
        ({"slalom": {"colour": "red"}}, "slalom.colour", "unknown field 'slalom.colour'"),
        ({"top-p": 1}, "top-p", "unknown field 'top-p'"),
        ({"str": 1}, "str", "unknown field 'str'"),
        ({"slalom": {"top-k": 1}}, "slalom.top-k", "unknown field 'slalom.top-k'"),
        ({"slalom": {"a[0]": 1}}, "slalom.a[0]", "unknown field 'slalom.a[0]'"),
        ({"slalom": SOUP | {"seed": 1}}, "slalom.seed", "give seed beside the slalom object"),
        ({"slalom": SOUP | {"length": 1}}, "slalom.length", "give max_tokens beside the slalom object"),
        ({"slalom": SOUP | {"samples": 1}}, "slalom.samples", "give n beside"),
        ({"slalom": SOUP | {"chat": True}}, "slalom.chat", "give messages, not a prompt"),
        ({"best_of": 2}, "best_of", "best_of is 2; it is not supported: leave it out, or give 1"),
        ({"logprobs": 3}, "logprobs", "it is not supported"),
        ({"echo": True}, "echo", "it is not supported"),
        ({"suffix": "."}, "suffix", "it is not supported"),
        ({"logit_bias": {"7": 1}}, "logit_bias", "it is not supported"),
        ({"presence_penalty": 0.5}, "presence_penalty", "it is not supported"),
        ({"n": 0}, "n", "n is 0; input should be greater than or equal to 1"),
        ({"n": 1.5}, "n", "n is 1.5; input should be a valid integer"),
        ({"n": "2"}, "n", "n is '2'; input should be a valid integer"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"seed": 2**60}, "seed", "less than or equal to"),
        ({"seed": 2**53 - 1, "n": 2}, "seed", "the seed of the last text is 9007199254740992; it must be at most"),
        ({"prompt": [1, 2]}, "prompt", "input should be a valid string"),
        ({"prompt": []}, "prompt", "prompt is []"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "are for streams"),
        ({"slalom": {"sentiment": "angry"}}, "slalom.sentiment", "'positive', 'neutral' or 'negative'"),
        ({"slalom": {"classifier": "taste"}}, "slalom", "a classifier and its label go together"),
        ({"slalom": SOUP | {"similar": ""}}, "slalom.similar", "slalom.similar is ''; string should have at least 1"),
        ({"slalom": {"classifier": "", "label": "good"}}, "slalom.classifier", "at least 1 character"),
        (
            {"slalom": {"strength": 2.0}},
            "slalom.strength",
            "is 2.0, but there is nothing to steer towards; name",
        ),
        ({"slalom": {"until": 0.9, "sampler": "none"}}, "slalom.until", "there is nothing to steer towards"),
        ({"slalom": {"knobs": {"width": 2}}}, "slalom.knobs", "there is nothing to steer towards"),
        ({"slalom": SOUP | {"description": "is nice"}}, "slalom.description", "slalom.classifier, which is not given"),
        ({"slalom": {"mode": "all"}}, "slalom.mode", "slalom.keywords, which is not given"),
        ({"slalom": SOUP | {"weights": {"topic": 2}}}, "slalom.weights", "slalom.weights has 'topic', which is not as"),
        ({"slalom": {"weights": {"topic": 2}}}, "slalom.weights", "ask for it too, or leave it out"),
        ({"slalom": SOUP | {"weights": {"keywords": 0}}}, "slalom.weights.keywords", "greater than 0"),
        ({"slalom": SOUP | {"weights": {"keywords": 1e9}}}, "slalom.weights.keywords", "less than or equal to 1000"),
        (
            {"slalom": SOUP | {"weights": {"keywords": "2"}}},
            "slalom.weights.keywords",
            "input should be a valid number",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_by_name(
    client: TestClient, changed: dict[str, Any], param: str, message: str
) -> None:
    error = refused(client, **changed)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize(
    ("changed", "param", "message"),
    [
        ({"slalom": SOUP | {"sampler": "gibbs"}}, "slalom.sampler", "choose from climb, dab"),
        ({"slalom": SOUP | {"preset": "best"}}, "slalom.preset", "unknown preset 'best'"),
        ({"slalom": SOUP | {"knobs": {"colour": 1}}}, "slalom.knobs.colour", "choose from width, looks"),
        ({"slalom": SOUP | {"knobs": {"tau": -1}}}, "slalom.knobs.tau", "it must be at least"),
        ({"slalom": SOUP | {"knobs": {"width": 2.7}}}, "slalom.knobs.width", "width is 2.7; it must be a whole number"),
        ({"slalom": SOUP | {"knobs": {"width": 10**9}}}, "slalom.knobs.width", "at most 32"),
        ({"slalom": {"regex": "a"}}, "slalom.regex", "is not open on this server"),
        ({"slalom": {"classifier": "tone", "label": "a"}}, "slalom.classifier", "choose from taste"),
        ({"prompt": " "}, None, "the prompt is empty"),
        ({"prompt": "rain " * 600}, None, "reads at most 512"),
        ({"stop": ""}, None, "a stop string is empty"),
    ],
    ids=str,
)
def test_what_the_lm_cannot_do_is_refused_in_its_own_words(
    client: TestClient, changed: dict[str, Any], param: str | None, message: str
) -> None:
    error = refused(client, **changed)
    assert error["param"] == param
    assert message in error["message"]


@pytest.mark.parametrize("name", sorted(OFF))
def test_an_unsupported_field_may_hold_the_value_that_means_off_and_nothing_else(client: TestClient, name: str) -> None:
    import json

    chat = name not in ("best_of", "echo", "suffix")
    path, body = ("/v1/chat/completions", SAY) if chat else ("/v1/completions", ASK)
    for value in (None, json.loads(OFF[name][1])):
        assert client.post(path, json=body | {name: value}).status_code == 200, value
    assert refused(client, path=path, **{name: {"odd": 1}})["param"].split(".")[0] == name


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"model": NaN}', b"null"])
def test_a_body_that_is_no_object_is_refused(client: TestClient, body: bytes) -> None:
    answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("depth", [50, 300, 900, 950, 980, 5000])
def test_a_body_nested_however_deeply_is_refused(client: TestClient, depth: int) -> None:
    for field in ("prompt", "logit_bias", "colour"):
        nested = "[" * depth + "]" * depth
        body = f'{{"model": "{NAME}", "prompt": "a", "{field}": {nested}}}'
        answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1" + "0" * 5000, "1e400", "-1e400", "1e308", "-1"])
def test_numbers_beyond_all_measure_are_refused(client: TestClient, number: str) -> None:
    fields = [f'"{field}": {number}' for field in ("max_tokens", "n", "seed", "temperature", "top_p")]
    fields += [
        f'"slalom": {{"keywords": ["soup"], {field}: {number}}}' for field in ('"strength"', '"steps"', '"until"')
    ]
    fields += [f'"slalom": {{"keywords": ["soup"], "knobs": {{"{knob}": {number}}}}}' for knob in ("width", "tau")]
    for field in fields:
        body = f'{{"model": "{NAME}", "prompt": "a", {field}}}'
        answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, field[:60]


def test_a_failure_of_ours_is_a_500_that_says_nothing_and_the_server_goes_on(
    client: TestClient, chatty: SteerableModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("secret")

    for broken in ("texts", "requests"):
        with monkeypatch.context() as patch:
            patch.setattr(chatty, broken, fail)
            error = refused(client, 500)
        assert error["code"] == "internal_error"
        assert "secret" not in error["message"]
        assert "a request failed: RuntimeError at" in caplog.text
        assert "in fail\n" in caplog.text
        assert "RuntimeError: secret" not in caplog.text
        assert client.get("/health").status_code == 200
        complete(client)


def test_the_log_has_the_message_of_a_failure_only_if_it_may_hold_prompts(caplog: pytest.LogCaptureFixture) -> None:
    for may in (False, True):
        assert api_error(RuntimeError("a prompt"), log_message=may).status_code == 500
        assert ("RuntimeError: a prompt" in caplog.text) == may


def test_a_text_that_cannot_be_read_fails_its_own_request_alone(
    client: TestClient, chatty: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = chatty.texts

    def fail_on_secrets(ends: list[Finished], compare: bool = False) -> list[Text]:
        if any("secret" in end.request.prompt.text for end in ends):
            raise RuntimeError("a bad text")
        return read(ends, compare)

    expected = complete(client, slalom=None)["choices"]
    worker = client.app.state.service.worker  # type: ignore[attr-defined]
    monkeypatch.setattr(chatty, "texts", fail_on_secrets)
    begun = threading.Event()
    worker._inbox.put(lambda: begun.wait(30))  # until both are there, so that they are finished by the same step
    with ThreadPoolExecutor(2) as pool:
        prompts = ("the secret", "the food")
        bodies = [ASK | {"prompt": prompt, "slalom": None} for prompt in prompts]
        asked = [pool.submit(client.post, "/v1/completions", json=body) for body in bodies]
        while len(worker._jobs) < 2:
            time.sleep(0.01)
        begun.set()
        bad, good = (one.result() for one in asked)
    assert bad.status_code == 500
    ((found,), (wanted,)) = good.json()["choices"], expected
    perplexity = wanted["slalom"].pop("perplexity")  # beside another prompt a CPU may round it otherwise
    assert found["slalom"].pop("perplexity") == pytest.approx(perplexity, rel=1e-4)
    assert found == wanted


def test_half_a_character_is_no_text(client: TestClient) -> None:
    for body in (r'{"model": "llama-tied", "prompt": "\ud800"}', r'{"model": "\ud800", "\ud800": 1}'):
        answer = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400


def test_unknown_routes_methods_and_models_are_answered_in_openais_shape(client: TestClient) -> None:
    assert client.get("/v2/nothing").json()["error"]["type"] == "not_found_error"
    wrong = client.get("/v1/completions")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert "method not allowed" in wrong.json()["error"]["message"]
    assert refused(client, 404, model="gpt-5")["code"] == "model_not_found"
    assert client.get("/v1/models/gpt-5").status_code == 404
    assert client.get(f"/v1/models/{NAME}").json()["id"] == NAME
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [NAME]


@pytest.mark.parametrize(
    ("limit", "changed", "param"),
    [
        ({"max_prompt": 5}, {}, "prompt"),
        ({"max_tokens": 5}, {}, "max_tokens"),
        ({"max_texts": 3}, {"n": 4}, "n"),
        ({"max_texts": 3}, {"n": 2, "prompt": ["a", "b"]}, "n"),
        ({"max_steps": 7}, {}, "slalom.steps"),
        ({"max_whole_tokens": 11}, {"n": 2, "slalom": SOUP | {"sampler": "dab"}}, "max_tokens"),
        ({"max_gradient_tokens": 11}, {"n": 2, "slalom": SOUP | {"sampler": "bolt"}}, "max_tokens"),
        ({"max_constraints": 1}, {"slalom": SOUP | {"avoid": ["rain"]}}, "slalom"),
        ({"max_words": 2}, {"slalom": SOUP | {"avoid": ["rain", "cold"]}}, "slalom.keywords"),
        ({"max_words": 2}, {"slalom": SOUP | {"topic": "rain,cold"}}, "slalom.keywords"),
    ],
    ids=str,
)
def test_more_than_the_server_gives_is_refused(
    chatty: SteerableModel, limit: dict[str, int], changed: dict[str, Any], param: str
) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, **limit)), LOCALHOST) as client:
        error = refused(client, **changed)
        assert (error["param"], error["code"]) == (param, "limit_exceeded")
        assert client.get("/props").json()["limits"].items() >= limit.items()


@pytest.mark.parametrize(
    ("changed", "most"),
    [
        ({"sampler": "rerank", "preset": "paper"}, "counted 10 times as knobs.top_k is 200; this server takes at most"),
        ({"sampler": "rerank"}, "is 8192; this server takes at most 2048 of rerank"),
        ({"sampler": "dab"}, "is 8192; this server takes at most 2048 of dab"),
        ({"sampler": "mucola"}, "is 8192; this server takes at most 640 of mucola"),
        ({"sampler": "cold", "knobs": {"inner": 400}}, "counted 40 times as knobs.inner is 400"),
        ({"sampler": "bolt-normalised"}, "choose from climb, best-of-n, none"),
    ],
    ids=str,
)
def test_a_step_that_would_hold_the_server_for_long_is_refused_before_it_begins(
    chatty: SteerableModel, changed: dict[str, Any], most: str
) -> None:
    requests = chatty.requests("a", Keywords(["soup"]), length=400, samples=16, **changed)
    requests = [one._replace(limits=one.limits._replace(length=512)) for one in requests]
    with pytest.raises(ApiError) as refusal:
        check_work(requests, ServeSpec())
    assert (refusal.value.param, refusal.value.code) == ("max_tokens", "limit_exceeded")
    assert most in refusal.value.detail


@pytest.mark.parametrize("sampler", ["climb", "best-of-n", "none"])
def test_a_sampler_whose_steps_are_short_may_write_as_much_as_the_other_limits_allow(
    chatty: SteerableModel, sampler: str
) -> None:
    check_work(chatty.requests("a", Keywords(["soup"]), length=400, samples=16, sampler=sampler), ServeSpec())


def test_the_server_is_not_healthy_while_a_step_takes_longer_than_a_request_may(
    chatty: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, max_seconds=0.2)), LOCALHOST) as client:
        advance, go_on = Worker._advance, threading.Event()
        monkeypatch.setattr(Worker, "_advance", lambda worker: (go_on.wait(30), advance(worker)))
        assert client.post("/v1/completions", json=ASK).status_code == 504
        time.sleep(0.3)  # the step began a little later than the request
        answer = client.get("/health")
        assert answer.status_code == 503
        assert "a step has been under way for more than 0.2 seconds" in answer.json()["error"]["message"]
        go_on.set()
        while client.get("/health").status_code == 503:
            time.sleep(0.01)


def test_what_is_left_open_keeps_within_the_limits(chatty: SteerableModel) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, max_tokens=5, max_steps=5)), LOCALHOST) as client:
        body = {"model": NAME, "prompt": "the food", "slalom": {"keywords": ["soup"]}}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert choice["slalom"]["drafts"] == 5
    assert choice["slalom"]["settings"]["max_tokens"] == 5


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(chatty: SteerableModel) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, max_body=200)), LOCALHOST) as client:
        assert client.post("/v1/completions", json=ASK).status_code == 200
        assert refused(client, 413, prompt="x" * 300)["code"] == "limit_exceeded"
        parts = (b'{"model": "' + b"x" * 50 + b'"' for _ in range(10))
        assert client.post("/v1/completions", content=parts).status_code == 413


def test_the_key_is_asked_for_everywhere_but_for_health_and_the_page(chatty: SteerableModel) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, api_key="sësame")), LOCALHOST) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/").status_code in (200, 404)
        for path in ("/props", "/metrics", "/v1/models", "/openapi.json", "/nothing"):
            assert client.get(path).status_code == 401
        for value in ("Bearer wrong", "sësame".encode(), "Bearer", "Basic abc", ""):
            answer = client.post("/v1/completions", json=ASK, headers={"Authorization": value})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        right = {"Authorization": "Bearer sësame".encode()}
        assert client.post("/v1/completions", json=ASK, headers=right).status_code == 200
        assert "sësame" not in client.get("/props", headers=right).text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:80", "127.0.0.2:80")),
        *(
            (host, 403)
            for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "[", "a@localhost")
        ),
    ],
)
def test_without_a_key_a_local_server_answers_to_local_names_alone(
    chatty: SteerableModel, host: str, status: int
) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, host="127.0.0.2")), LOCALHOST) as client:
        for path in ("/props", "/", "/health"):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code == status
        if status == 403:
            assert answer.json()["error"]["code"] == "unknown_host"


@pytest.mark.parametrize("settings", [{"host": "0.0.0.0"}, {"api_key": "sesame"}])
def test_with_a_key_or_open_to_others_a_server_answers_to_any_name(
    chatty: SteerableModel, settings: dict[str, str]
) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, **settings)), LOCALHOST) as client:
        assert client.get("/health", headers={"Host": "slalom.example"}).status_code == 200


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"classifier": "{folder}", "label": "good"}, "choose from taste"),
        ({"classifier": "sentiment", "label": "positive"}, "choose from taste"),
        ({"classifier": "someone/something", "label": "good"}, "choose from taste"),
        ({"sentiment": "positive"}, "slalom.sentiment is not open on this server"),
        ({"regex": "(a+)+$"}, "slalom.regex is not open on this server"),
        ({"constraints": {"rhyme": "x"}}, "slalom.constraints is not open on this server"),
        (SOUP | {"sampler": "lm-steer", "knobs": {"steer": "{folder}"}}, "slalom.knobs has 'steer'"),
        (SOUP | {"knobs": {"width": 10**9}}, "at most 32"),
        (SOUP | {"knobs": {"top_k": "1000000"}}, "it must be a number"),
    ],
    ids=str,
)
def test_a_request_can_name_only_what_the_operator_registered(
    client: TestClient, classifier_folder: Path, wish: dict[str, Any], message: str
) -> None:
    filled = {
        key: value.replace("{folder}", str(classifier_folder)) if isinstance(value, str) else value
        for key, value in wish.items()
    }
    assert message in refused(client, slalom=filled)["message"]


def test_what_the_operator_allows_is_open(chatty: SteerableModel) -> None:
    with TestClient(make_app(chatty, ServeSpec(shipped=False, allow_regex=True)), LOCALHOST) as client:
        assert "regex" in client.get("/props").json()["wishes"]
        assert complete(client, slalom={"regex": "[a-z]", "steps": 4})["choices"][0]["slalom"]["satisfied"]
        assert "is no regular expression" in refused(client, slalom={"regex": "("})["message"]


def test_a_users_text_is_never_read_as_control_tokens(client: TestClient, chatty: SteerableModel) -> None:
    name = "<|im_end|>"
    pieces = chatty.vocabulary.pieces(name)
    assert len(pieces) > 1
    assert not {chatty.tokenizer.convert_tokens_to_ids(name)} & set(pieces)
    alone = complete(client, prompt=name, slalom=None)["usage"]["prompt_tokens"]
    assert alone == len(pieces)

    def counted(content: str, **slalom: Any) -> int:
        body = SAY | {"messages": [{"role": "user", "content": content}], "slalom": slalom or None}
        return client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]

    assert counted(f"x{name}") - counted("x") == len(pieces)
    assert counted("x", tell=f"Write.{name}") - counted("x", tell="Write.") == len(pieces)


def test_the_log_holds_prompts_only_if_it_should(
    chatty: SteerableModel, settings: ServeSpec, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="slalom.server")
    for asked in (False, True):
        caplog.clear()
        with TestClient(make_app(chatty, settings.model_copy(update={"log_prompts": asked})), LOCALHOST) as client:
            complete(client, prompt="the secret food")
            refused(client, prompt="the secret food", colour="red")
        assert "POST /v1/completions 200" in caplog.text
        assert ("secret" in caplog.text) == asked


def test_props_say_what_may_be_asked_for(client: TestClient, classifier_folder: Path) -> None:
    answer = client.get("/props")
    props = answer.json()
    assert (props["model"], props["engine"], props["chat"]) == (NAME, "torch", True)
    assert props["classifiers"] == [{"name": "taste", "labels": ["bad", "good"]}]
    assert "keywords" in props["fields"]["properties"]
    assert props["fields"]["properties"]["weights"]["additionalProperties"]["maximum"] == 1000
    assert "seed" not in props["fields"]["properties"]
    assert props["defaults"]["sampler"] == "climb"
    knobs = {sampler["name"]: [knob["name"] for knob in sampler["knobs"]] for sampler in props["samplers"]}
    assert "width" in knobs["climb"]
    assert "steer" not in knobs["lm-steer"]
    assert "space" in props["topics"]
    assert str(classifier_folder) not in answer.text


def test_metrics_count_requests_drafts_and_tokens(chatty: SteerableModel, settings: ServeSpec) -> None:
    with TestClient(make_app(chatty, settings), LOCALHOST) as client:
        complete(client)
        refused(client, n=0)
        client.get("/nothing")
        found = client.get("/metrics")
    assert found.headers["content-type"].startswith("text/plain")
    for line in (
        'slalom_requests_total{endpoint="/v1/completions",status="200"} 1.0',
        'slalom_requests_total{endpoint="/v1/completions",status="400"} 1.0',
        'slalom_requests_total{endpoint="other",status="404"} 1.0',
        'slalom_request_seconds_count{endpoint="/v1/completions"} 2.0',
        "slalom_drafts_total 5.0",
        "slalom_tokens_total 6.0",
        "slalom_queue 0.0",
        "slalom_rows 0.0",
    ):
        assert line in found.text


def test_the_page_is_served_and_may_load_nothing_from_elsewhere(
    chatty: SteerableModel, settings: ServeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "PAGE", tmp_path)
    with TestClient(make_app(chatty, settings), LOCALHOST) as client:
        assert "no page" in client.get("/").json()["error"]["message"]
        (tmp_path / "index.html").write_text("<title>Slalom</title>")
        (tmp_path / "page.js").write_text("1")
        for path, kind in (("/", "text/html"), ("/page/page.js", "text/javascript")):
            answer = client.get(path)
            assert answer.headers["content-type"].startswith(kind)
            assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        assert client.get("/page/../app.py").status_code == 404
        assert client.get("/page/nothing.js").json()["error"]["type"] == "not_found_error"
