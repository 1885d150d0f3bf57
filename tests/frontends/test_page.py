"""The playground page in a real browser."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from typer.testing import CliRunner

from slalom.api import SteerableModel
from slalom.errors import SlalomError
from slalom.frontends import cli
from slalom.frontends.server.app import make_app
from slalom.frontends.server.settings import ServeSpec
from slalom.frontends.specs import GenerateSpec
from tests.frontends.pretended_server import PROPS, PretendedServer, event, served

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install 'slalom[dev]'")
expect = sync_api.expect
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on this machine: apt-get install chromium"
)

QUIET = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
EMPTY = {"prompt": ""}
NASTY = """It's "5 o'clock" at $HOME; `ls` \\ naïve 日本 #!&"""
EVERYTHING = {
    "prompt": NASTY,
    "sentiment": "positive",
    "keywords": "soup,rain",
    "mode": "all",
    "topic": "space",
    "avoid": "moon",
    "detoxify": "yes",
    "similar": "-a storm's end",
    "whole_sentences": "yes",
    "classifier": "tone",
    "label": "cold",
    "weights": '{"sentiment":2,"keywords":0.5,"whole_sentences":1.25}',
    "sampler": "climb",
    "preset": "thorough",
    "select": "joint",
    "strength": "1.5",
    "steps": "12",
    "length": "30",
    "temperature": "0.7",
    "top_p": "0.9",
    "until": "0.97",
    "samples": "2",
    "seed": "7",
    "tell_as": "Say it's bad.",
    "stop": '["\\t","Dear"]',
    "knobs": '{"width":2}',
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def running() -> Iterator[PretendedServer]:
    server = PretendedServer()
    with served(server.app()) as address:
        server.address = address
        yield server


@pytest.fixture
def server(running: PretendedServer) -> PretendedServer:
    """The server, with nothing asked of it yet."""
    running.bodies.clear()
    running.pause = 0.0
    running.left.clear()
    return running


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, server: PretendedServer) -> Iterator[Open]:
    """Opens the page with a link's settings; at the end nothing was complained of, and no other host was asked."""
    contexts, complaints, hosts = [], [], set()

    def open_page(settings: dict[str, str] | None = None, address: str = server.address, **context: Any) -> Any:
        contexts.append(browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context)))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: hosts.add(urlparse(request.url).hostname))
        page.goto(address + "/" + ("" if settings is None else "#" + urlencode(settings)))
        expect(page.locator("#model")).not_to_be_empty()
        return page

    yield open_page
    for context in contexts:
        context.close()
    refused = [text for text in complaints if "Failed to load resource" not in text]  # the browser's own word on a 4xx
    assert refused == []
    assert hosts == {"127.0.0.1"}


def settings_of(page: Any) -> dict[str, str]:
    """What the address says."""
    return {
        name: value
        for name, (value,) in parse_qs(
            urlparse(page.evaluate("location.href")).fragment, keep_blank_values=True
        ).items()
    }


def write(page: Any) -> None:
    page.click("#write")
    expect(page.locator("#status")).to_contain_text("Done")


# Writing


def test_a_text_is_written_and_stands_beside_the_unsteered_one(opened: Open, server: PretendedServer) -> None:
    page = opened(EMPTY)
    page.fill("#prompt", "The food")
    page.click("[data-add=sentiment]")
    page.select_option("#sentiment", "negative")
    write(page)
    body = {"model": "tiny", "prompt": "The food", "seed": 0, "compare": True, "slalom": {"sentiment": "negative"}}
    assert server.bodies == [body]
    expect(page.locator("#steered .prose")).to_have_text("The food was cold soup")
    expect(page.locator("#own .prose")).to_have_text("The food was <i>fine</i>")
    expect(page.locator("#own .facts")).to_have_text("perplexity 4.5")
    expect(page.locator("#scores li").nth(0)).to_contain_text("p 0.953")
    expect(page.locator("#scores .verdict")).to_have_text(["✓ yes", "✗ no"])


def test_the_search_is_shown_step_by_step(opened: Open) -> None:
    page = opened()
    write(page)
    facts, tokens = page.locator("#step-facts"), page.locator("#tokens")
    expect(facts).to_contain_text("step 3 of 4")  # the draft that was kept
    expect(page.locator("#tokens mark")).to_have_text(["cold", "soup"])
    expect(tokens.locator(".bias[aria-hidden=true]")).to_have_text(["cold"] * 3)
    expect(page.locator("#curve .point")).to_have_count(4)
    expect(page.locator("#curve .ring")).to_have_count(1)
    page.focus("#step")
    page.keyboard.press("ArrowLeft")
    expect(facts).to_contain_text("step 2 of 4 · score 0.5")
    expect(tokens).to_have_text(" was <b>", use_inner_text=True)
    expect(tokens.locator(".bias")).to_have_count(0)
    expect(page.locator("#best .prose")).to_have_text("was <b>")
    page.keyboard.press("End")
    expect(page.locator("#best .prose")).to_have_text("was cold soup")
    page.click("#all summary")
    expect(page.locator("#drafts tr")).to_have_count(4)
    page.locator("#drafts button").nth(0).click()
    expect(facts).to_contain_text("step 1 of 4")


def test_every_sample_can_be_looked_at(opened: Open) -> None:
    page = opened({"prompt": "The food", "sentiment": "negative", "samples": "3", "seed": "5"})
    write(page)
    expect(page.locator("#which button")).to_have_count(3)
    page.locator("#which button").nth(2).click()
    expect(page.locator("#steered .facts")).to_contain_text("seed 7")


def test_stopping_closes_the_stream(opened: Open, server: PretendedServer) -> None:
    server.pause = 0.4
    page = opened()
    page.click("#write")
    expect(page.locator("#status")).to_contain_text("drafts")
    page.click("#stop-writing")
    expect(page.locator("#status")).to_contain_text("Stopped")
    assert server.left.wait(5)
    expect(page.locator("#write")).to_be_enabled()


def test_a_chat_is_sent_as_messages(opened: Open, server: PretendedServer) -> None:
    page = opened()
    page.click("#as-chat")
    page.locator("#messages textarea").nth(0).fill("Describe my cafe")
    page.click("#add-message")
    page.locator("#messages textarea").nth(1).fill("Shortly")
    write(page)
    chat = [{"role": "user", "content": "Describe my cafe"}, {"role": "user", "content": "Shortly"}]
    assert server.bodies[0]["messages"] == chat
    assert "prompt" not in server.bodies[0]


# The real server


@pytest.fixture(scope="module")
def tiny_server(llama: SteerableModel) -> Iterator[str]:
    """A tiny LM behind the real routes, which ask for a key."""
    app = make_app(llama, ServeSpec(shipped=False, api_key="secret", name="tiny"))
    with served(app) as address:
        yield address


def test_the_page_writes_with_the_real_server(browser: Any, tiny_server: str) -> None:
    page = browser.new_context().new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
    page.goto(tiny_server + "/#" + urlencode({"prompt": "the food", "keywords": "soup", "length": 8, "tell": "no"}))
    expect(page.locator("#problem")).to_contain_text("asks for an API key")
    page.fill("#key", "wrong")
    page.click("#write")
    expect(page.locator("#problem")).to_contain_text("did not accept this API key")
    page.fill("#key", "secret")
    page.press("#key", "Tab")
    expect(page.locator("#model")).to_have_text("tiny · torch")
    expect(page.locator("[data-add=sentiment]")).to_have_count(0)  # this server has it not
    write(page)
    expect(page.locator("#steered .prose")).to_contain_text("soup")
    expect(page.locator("#scores .verdict")).to_have_text(["✓ yes"])
    expect(page.locator("#own .facts")).to_contain_text("perplexity")
    expect(page.locator("#curve .point")).not_to_have_count(0)
    page.click("#more summary")
    page.select_option("#sampler", "dab")
    page.fill("#steps", "5")
    write(page)
    expect(page.locator("#drafts tr")).to_have_count(5)
    page.focus("#step")
    page.keyboard.press("End")
    assert page.locator("#tokens .bias").count() == 8
    page.fill("#top_p", "3")
    page.click("#write")
    expect(page.locator("#problem")).to_contain_text("top_p is 3")
    assert page.evaluate("document.activeElement.id") == "top_p"
    assert complaints == []
    page.context.close()


# The form


def test_a_link_restores_the_form_and_runs_nothing(opened: Open, server: PretendedServer) -> None:
    page = opened(EVERYTHING)
    assert settings_of(page) == EVERYTHING
    assert server.bodies == []
    write(page)
    (body,) = server.bodies
    assert body | {"slalom": None} == {
        "model": "tiny",
        "prompt": NASTY,
        "max_tokens": 30,
        "n": 2,
        "seed": 7,
        "stop": ["\t", "Dear"],
        "temperature": 0.7,
        "top_p": 0.9,
        "compare": True,
        "slalom": None,
    }
    assert body["slalom"] == {
        "sentiment": "positive",
        "keywords": ["soup", "rain"],
        "mode": "all",
        "topic": "space",
        "avoid": ["moon"],
        "detoxify": True,
        "similar": "-a storm's end",
        "whole_sentences": True,
        "classifier": "tone",
        "label": "cold",
        "weights": {"sentiment": 2, "keywords": 0.5, "whole_sentences": 1.25},
        "sampler": "climb",
        "preset": "thorough",
        "select": "joint",
        "strength": 1.5,
        "steps": 12,
        "until": 0.97,
        "tell": "Say it's bad.",
        "knobs": {"width": 2},
    }


def test_a_link_of_nonsense_leaves_a_form_that_works(opened: Open) -> None:
    page = opened(
        {
            **{"messages": "{", "stop": "3", "knobs": "[]", "seed": "x", "sampler": "none such", "sentiment": "sad"},
            "weights": '{"sentiment": "x", "topic": 3, "avoid": 2}',
        }
    )
    assert "weights" not in settings_of(page)
    assert settings_of(page)["sampler"] == "none such"  # the server says what it thinks of it
    expect(page.locator("#seed")).to_have_value("0")


def test_slider_and_box_keep_in_step(opened: Open) -> None:
    page = opened()
    page.fill("#length", "50")
    expect(page.locator("#length-slider")).to_have_value("50")
    page.focus("#length-slider")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#length")).to_have_value("51")
    assert settings_of(page)["length"] == "51"
    page.click("[aria-label='Length as usual']")
    assert "length" not in settings_of(page)


def test_every_constraint_has_a_weight_with_slider_and_box(opened: Open, server: PretendedServer) -> None:
    page = opened({"prompt": "The food", "sentiment": "negative", "keywords": "soup", "detoxify": "yes"})
    assert page.locator("#wishes input[type=range]").count() == page.locator("#wishes input[type=number]").count() == 3
    page.get_by_label("Weight of Sentiment", exact=True).fill("2.5")
    expect(page.get_by_label("Weight of Sentiment, slider")).to_have_value("2.5")
    page.get_by_label("Weight of Keywords, slider").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_label("Weight of Keywords", exact=True)).to_have_value("0.95")
    assert json.loads(settings_of(page)["weights"]) == {"sentiment": 2.5, "keywords": 0.95}
    write(page)
    assert server.bodies[0]["slalom"]["weights"] == {"sentiment": 2.5, "keywords": 0.95}


def test_a_weight_of_one_is_no_setting(opened: Open, server: PretendedServer) -> None:
    page = opened({"prompt": "The food", "sentiment": "negative", "weights": '{"sentiment": 3}'})
    expect(page.locator("#weight-sentiment-slider")).to_have_value("3")
    page.fill("#weight-sentiment", "1")
    assert "weights" not in settings_of(page)
    assert "--weight" not in page.inner_text("#repeat-text")
    page.fill("#weight-sentiment", "3")
    page.click("[aria-label='Weight of Sentiment as usual']")
    expect(page.locator("#weight-sentiment-slider")).to_have_value("1")
    write(page)
    assert server.bodies[0]["slalom"] == {"sentiment": "negative"}


def test_the_weight_of_a_constraint_goes_with_it(opened: Open) -> None:
    page = opened(
        {"prompt": "x", "sentiment": "negative", "keywords": "soup", "weights": '{"sentiment":2,"keywords":3}'}
    )
    page.click("[aria-label='Remove Sentiment']")
    page.fill("#keywords", "")  # then it is not asked for
    assert "weights" not in settings_of(page)
    page.click("[data-add=sentiment]")
    expect(page.locator("#weight-sentiment")).to_have_value("")


def test_what_is_never_written_has_no_weight(opened: Open) -> None:
    page = opened({"prompt": "The food", "avoid": "moon"})
    expect(page.locator("#wishes li")).to_contain_text("Never written")
    expect(page.locator("#wishes input[type=range]")).to_have_count(0)


def test_constraints_come_and_go(opened: Open, server: PretendedServer) -> None:
    page = opened(EMPTY)
    for name in ("sentiment", "keywords", "topic", "avoid", "detoxify", "similar", "whole_sentences", "classifier"):
        page.click(f"[data-add={name}]")
        expect(page.locator(f"[data-add={name}]")).to_have_count(0)
    page.click("[aria-label='Remove Topic']")
    expect(page.locator("[data-add=topic]")).to_have_count(1)
    page.select_option("#classifier", "tone")
    page.select_option("#label", "cold")
    page.fill("#prompt", "The food")
    write(page)
    wishes = {"sentiment": "negative", "detoxify": True, "whole_sentences": True, "classifier": "tone", "label": "cold"}
    assert server.bodies[0]["slalom"] == wishes  # what was left empty is not asked for


def test_the_link_follows_when_one_choice_changes_others(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    manner = {"name": "manner", "labels": ["rude", "polite"]}
    monkeypatch.setitem(PROPS, "classifiers", [*PROPS["classifiers"], manner])
    asked = {"prompt": "x", "classifier": "tone", "label": "cold", "sampler": "climb", "preset": "thorough"}
    page = opened(asked | {"knobs": '{"width":2}'})
    page.select_option("#classifier", "manner")
    assert settings_of(page)["label"] == "rude"
    page.select_option("#sampler", "dab")
    assert not {"preset", "knobs"} & set(settings_of(page))
    expect(page.locator("#repeat-text")).not_to_contain_text("thorough")
    expect(page.locator("#more-set")).to_have_text("1 set")


def test_told_not_told_and_own_words(opened: Open) -> None:
    page = opened()
    for value, said in (("yes", {"tell": "yes"}), ("no", {"tell": "no"}), ("auto", {})):
        page.check(f"#tell [value={value}]")
        assert {name: one for name, one in settings_of(page).items() if name.startswith("tell")} == said
    page.check("#tell [value=own]")
    page.fill("#tell-as", "Write gloomily.")
    assert settings_of(page)["tell_as"] == "Write gloomily."


def test_the_page_can_be_used_by_keyboard_alone(opened: Open) -> None:
    page = opened(EMPTY)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "prompt":
            break
    page.keyboard.type("The food")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # the first button that adds a constraint
    assert page.evaluate("document.activeElement.id") == "sentiment"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # focus is visible
    page.keyboard.press("Control+Enter")
    expect(page.locator("#status")).to_contain_text("Done")
    expect(page.locator("#steered .prose")).to_have_text("The food was cold soup")
    unnamed = page.evaluate(
        """[...document.querySelectorAll("input, select, textarea, button")]
             .filter(one => !one.labels?.length && !one.ariaLabel && !one.textContent.trim())
             .map(one => one.outerHTML)"""
    )
    assert unnamed == []


def test_the_focus_stays_near_when_something_is_removed(opened: Open) -> None:
    page = opened({"prompt": "x", "sentiment": "negative", "topic": "space", "regex": "a+"})
    for title, adder in (("Topic", "add-topic"), ("Pattern", "add-keywords")):  # no pattern can be added here
        page.click(f"[aria-label='Remove {title}']")
        assert page.evaluate("document.activeElement.id") == adder
    page.click("#as-chat")
    page.click("[aria-label='Remove message']")
    assert page.evaluate("document.activeElement.id") == "add-message"


def luminance(colour: str) -> float:
    """How light a colour is, by the WCAG's formula."""
    shares = [float(one) / 255 for one in re.findall(r"[\d.]+", colour)[:3]]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_placeholders_can_be_read(opened: Open, scheme: str) -> None:
    page = opened({"prompt": "x", "keywords": "soup"}, color_scheme=scheme)
    for name in ("#keywords", "#length"):
        box = page.locator(name)
        behind = luminance(box.evaluate("box => getComputedStyle(box).backgroundColor"))
        colour, opacity = box.evaluate(
            "box => { const faint = getComputedStyle(box, '::placeholder'); return [faint.color, faint.opacity]; }"
        )
        darker, lighter = sorted((behind, luminance(colour)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5
        assert opacity == "1"


# What goes wrong


def fulfilled(body: str, route: Any) -> None:
    route.fulfill(status=200, body=body)


@pytest.mark.parametrize(
    ("status", "headers", "error", "said", "focused"),
    [
        (401, {}, {"message": "no key"}, "asks for an API key", "key"),
        (429, {"Retry-After": "7"}, {"message": "full"}, "Try again in 7 seconds", None),
        (400, {}, {"message": "top_p is 3; at most 1", "param": "top_p"}, "top_p is 3; at most 1.", "top_p"),
        (400, {}, {"message": "too long", "param": "max_tokens"}, "max_tokens: too long.", "length"),
        (400, {}, {"message": "unknown sampler", "param": "slalom.sampler"}, "unknown sampler", "sampler"),
        (400, {}, {"message": "too much", "param": "slalom.weights.sentiment"}, "too much", "weight-sentiment"),
        (400, {}, {"message": "too wide", "param": "slalom.knobs.width"}, "too wide", "knob-width"),
        (500, {}, {}, "Something went wrong in the server", None),
    ],
)
def test_a_refusal_is_told_in_plain_words(
    opened: Open, status: int, headers: dict[str, str], error: dict[str, str], said: str, focused: str | None
) -> None:
    page = opened()
    write(page)
    answer = {"status": status, "headers": headers, "json": {"error": error}}
    page.route("**/v1/steer/stream", lambda route: route.fulfill(**answer))
    page.click("#write")
    expect(page.locator("#problem")).to_contain_text(said)
    expect(page.locator("#steered .prose")).to_contain_text("was cold soup")  # the last result stays
    if focused:
        assert page.evaluate("document.activeElement.id") == focused
    page.unroute("**/v1/steer/stream")
    write(page)
    expect(page.locator("#problem")).to_be_hidden()


def test_an_error_within_a_stream_and_a_broken_stream_are_told(opened: Open) -> None:
    page = opened()
    answers = {"no room for this wish.": event("error", {"error": {"message": "no room for this wish"}})}
    answers["ended before the text was finished"] = event("start", {"told": None})
    for said in answers:
        page.route("**/v1/steer/stream", functools.partial(fulfilled, answers[said]))
        page.click("#write")
        expect(page.locator("#problem")).to_contain_text(said)


def test_nothing_is_sent_without_prompt_or_constraint(opened: Open, server: PretendedServer) -> None:
    page = opened({"sentiment": "negative"})
    page.click("#write")
    expect(page.locator("#problem")).to_contain_text("write a prompt")
    page.fill("#prompt", "The food")
    page.click("[aria-label='Remove Sentiment']")
    page.click("#write")
    expect(page.locator("#problem")).to_contain_text("add a constraint")
    assert server.bodies == []


def test_the_key_stays_in_the_tab(opened: Open, server: PretendedServer) -> None:
    page = opened()
    page.click("#access summary")
    page.fill("#key", "secret")
    page.click("[data-as=curl]")
    assert "secret" not in page.evaluate("location.href") + page.inner_text("#repeat-text")
    assert "$SLALOM_API_KEY" in page.inner_text("#repeat-text")
    with page.expect_request("**/v1/steer/stream") as asked:
        write(page)
    assert asked.value.headers["authorization"] == "Bearer secret"
    assert page.evaluate("[localStorage.length, sessionStorage.getItem('slalom-key')]") == [0, "secret"]


# Copied texts


def command_words(line: str) -> list[str]:
    """The words a real shell makes of a command line; a file made on the spot as its content."""
    function = (
        'slalom() { for a; do case "$a" in /dev/fd/*) cat "$a";; *) printf %s "$a";; esac; printf "\\0"; done; }\n'
    )
    out = subprocess.run(["bash", "-c", function + line], capture_output=True, check=True, text=True).stdout
    return out.split("\0")[:-1]


def specification(words: list[str], monkeypatch: pytest.MonkeyPatch) -> GenerateSpec:
    """What the command would be asked for."""
    asked: list[dict[str, Any]] = []

    def stop_here(given: dict[str, Any], file: Any = None) -> Any:
        asked.append(given)
        raise SlalomError("enough")

    monkeypatch.setattr(cli, "make_spec", stop_here)
    result = CliRunner().invoke(cli.app, words)
    assert asked, result.output
    return GenerateSpec.model_validate(asked[0])


def asked_of_the_server(body: dict[str, Any]) -> dict[str, Any]:
    """A request in the specification's words."""
    names = {"max_tokens": "length", "n": "samples"}
    ours = {names.get(name, name): value for name, value in body.items() if name not in ("slalom", "compare")}
    prompt = ours.pop("prompt", None)
    return {"prompts": [prompt or ours.pop("messages")], "model": "tiny", "engine": "torch"} | ours | body["slalom"]


@pytest.mark.parametrize("prompt", [NASTY, "-x", "two\nlines"])
def test_the_copied_command_line_asks_for_the_same(
    prompt: str, opened: Open, server: PretendedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(EVERYTHING | {"prompt": prompt})
    line = page.inner_text("#repeat-text")
    words = command_words(line)
    assert ["slalom", *words] == shlex.split(line, comments=True)
    write(page)
    asked = asked_of_the_server(server.bodies[0]) | {"knobs": {"width": "2"}}  # as typed; the sampler knows its type
    assert specification(words, monkeypatch) == GenerateSpec.model_validate(asked)


def test_the_copied_command_line_of_a_chat_carries_its_messages(opened: Open) -> None:
    import tomllib

    chat = [{"role": "system", "content": NASTY}, {"role": "user", "content": 'a\n"b"\\'}]
    page = opened({"messages": json.dumps(chat), "sentiment": "negative"})
    words = command_words(page.inner_text("#repeat-text"))
    assert tomllib.loads(words[words.index("--spec") + 1]) == {"prompts": [chat]}
    page = opened({"messages": json.dumps(chat[1:]), "sentiment": "negative"})
    assert command_words(page.inner_text("#repeat-text"))[1:3] == ["--chat", 'a\n"b"\\']


def test_the_copied_python_asks_for_the_same(
    opened: Open, server: PretendedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(EVERYTHING)
    page.click("[data-as=python]")
    program = compile(page.inner_text("#repeat-text"), "copied", "exec")
    write(page)
    called: list[Any] = []

    class Part(list[Any]):
        """A constraint that remembers how it was made and what it weighs."""

        def __rmul__(self, weight: Any) -> Part:
            return Part([(*one, weight) for one in self])

    def named(name: str) -> Callable[..., Part]:
        return lambda *given: Part([(name, *given)])

    def steer(prompt: Any, wish: Part, **options: Any) -> Any:
        called.append((prompt, list(wish), options))
        return SimpleNamespace(rows=[])

    pretended = SimpleNamespace(
        load=lambda model, engine: SimpleNamespace(steer=steer),
        **{
            name: named(name)
            for name in ("Sentiment", "Toxicity", "Keywords", "Topic", "Avoid", "Similar", "EndsWithSentence")
        },
    )
    monkeypatch.setitem(sys.modules, "slalom", pretended)
    monkeypatch.setitem(sys.modules, "slalom.constraints", SimpleNamespace(classifier=named("classifier")))
    exec(program, {})
    ((prompt, wish, options),) = called
    assert prompt == NASTY
    assert [part[0] for part in wish] == [
        *("Sentiment", "Toxicity", "Keywords", "Topic", "Avoid", "classifier", "Similar", "EndsWithSentence")
    ]
    assert (wish[0], wish[2]) == (("Sentiment", "positive", 2), ("Keywords", ["soup", "rain"], "all", 0.5))
    assert (wish[1], wish[-1]) == (("Toxicity", "low"), ("EndsWithSentence", 1.25))
    spec = asked_of_the_server(server.bodies[0])
    assert options == {"compare": True} | {name: spec[name] for name in options if name != "compare"}
    assert {"length", "samples", "seed", "stop", "tell", "knobs", "until", "top_p", "steps"} <= set(options)


def test_the_copied_curl_sends_the_same(opened: Open, server: PretendedServer) -> None:
    page = opened(EVERYTHING)
    page.click("[data-as=curl]")
    words = shlex.split(page.inner_text("#repeat-text"))
    assert words[:2] == ["curl", f"{server.address}/v1/completions"]
    write(page)
    (body,) = server.bodies
    del body["compare"]
    assert json.loads(words[words.index("-d") + 1]) == body
    page.click("#copy")
    expect(page.locator("#copy")).to_have_text(re.compile("Cop"))


# How it looks


def test_what_users_and_models_write_is_never_markup(opened: Open) -> None:
    attack = "<img src=x onerror=alert(1)>"
    page = opened({"prompt": attack, "keywords": attack, "sampler": attack, "sentiment": "negative"})
    write(page)
    expect(page.locator("#steered .prose")).to_contain_text(attack)
    assert page.locator("main img, main b, main i, main script").count() == 0


@pytest.mark.parametrize(
    "settings", [None, EVERYTHING, {"messages": '[{"role":"user","content":"' + "w" * 300 + '"}]'}]
)
def test_a_phone_never_scrolls_sideways(settings: dict[str, str] | None, opened: Open) -> None:
    page = opened({"sentiment": "negative"} | settings if settings else None, viewport={"width": 390, "height": 844})
    write(page)
    for summary in page.locator("summary").all():
        summary.evaluate("one => one.parentElement.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_dark_and_light_follow_the_system_until_one_is_chosen(opened: Open) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(None, color_scheme=scheme) for scheme in ("light", "dark"))
    seen = light.evaluate(background), dark.evaluate(background)
    assert len(set(seen)) == 2
    dark.click("#theme")
    expect(dark.locator("#theme")).to_have_text("Theme: light")
    assert dark.evaluate(background) == seen[0]
    dark.reload()
    assert dark.evaluate(background) == seen[0]


def test_a_server_with_nothing_to_choose_from_gets_a_page_too(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("samplers", "presets", "topics", "classifiers"):
        monkeypatch.setitem(PROPS, name, [])
    monkeypatch.setitem(PROPS, "wishes", ["sentiment"])
    monkeypatch.setitem(PROPS, "chat", False)
    page = opened()
    expect(page.locator("#as-chat")).to_be_disabled()
    expect(page.locator("[data-add=classifier]")).to_have_count(0)
    write(page)
