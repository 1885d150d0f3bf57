"""The LM is told the wish as well as steered, unless somebody says no; nobody else reads what it is told."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Avoid, Custom, Keywords, Regex, Topic
from slalom.constraints.classifier import Classifier
from slalom.decoding import SAMPLERS
from slalom.errors import SlalomError
from tests.conftest import tiny_classifier, tiny_lm

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}[assistant]"
SAD = Custom(lambda prompt, text: True, "sad", description="is sad")


@pytest.fixture(scope="module")
def chatty() -> SteerableModel:
    """A tiny instruct LM with room for what it is told."""
    lm = tiny_lm("llama-tied", positions=256)
    lm.tokenizer.chat_template = TEMPLATE
    return lm


def test_sums_join_what_their_parts_say_and_what_has_no_words_says_nothing() -> None:
    assert (SAD + Keywords(["soup", "rain"], "all")).describe() == "is sad and has to do with soup and rain"
    assert (SAD + Regex("x") + Avoid(["rain"])).describe() == "is sad"
    assert (SAD + -1.0 * Topic("space")).describe() == "is sad"
    assert Topic("space").describe() == "is about space"
    assert Regex("x").describe() is None


def test_of_several_words_that_would_do_only_the_likeliest_is_named() -> None:
    assert Keywords(["soup", "rain"]).describe(lambda words: words[1]) == "has to do with rain"


def test_a_classifier_is_described_in_the_words_it_was_given() -> None:
    model, tokenizer = tiny_classifier()
    assert Classifier(model, "good", tokenizer).describe() is None
    assert Classifier(model, "good", tokenizer, description="is good").describe() == "is good"


def test_an_instruct_model_is_told_unless_somebody_says_no(chatty: SteerableModel) -> None:
    (told,) = chatty.steer("the food", SAD, steps=1).rows
    assert told.told == "Write a short text that is sad."
    assert told.told_perplexity is not None
    (untold,) = chatty.steer("the food", SAD, steps=1, tell=False).rows
    assert untold.told is None
    assert untold.told_perplexity is None
    assert told.text != untold.text


def test_a_base_model_reads_the_wish_as_a_heading_above_the_prompt() -> None:
    base = tiny_lm("llama-tied", positions=256)
    (request,) = base.requests("the food", SAD)
    assert request.told == "Below is an example of a short text that is sad:"
    assert base.tokenizer.decode(request.prompt.ids).split() == f"{request.told} the food".split()
    assert request.prompt.untold_ids == base.encode("the food", 20).ids
    assert base.requests("the food", SAD, tell=False)[0].told is None


def test_a_model_without_room_for_the_wish_is_told_nothing_unless_it_must_be() -> None:
    small = tiny_lm("llama-tied", positions=40)
    room = small.context - len(small.encode("the food", 1).ids)
    (request,) = small.requests("the food", SAD, length=room)
    assert request.told is None
    assert request.prompt.untold_ids is None
    with pytest.raises(SlalomError, match="reads at most 40; shorten the prompt or the length"):
        small.requests("the food", SAD, length=room, tell=True)


def test_own_words_are_told_as_they_are(chatty: SteerableModel) -> None:
    assert chatty.steer("the food", Regex("."), steps=1, tell="Be gloomy.").rows[0].told == "Be gloomy."


def test_a_wish_without_words_is_told_to_nobody_or_refused(chatty: SteerableModel) -> None:
    assert chatty.steer("the food", Regex("."), steps=1).rows[0].told is None
    with pytest.raises(SlalomError, match="no words for regex"):
        chatty.steer("the food", Regex("."), steps=1, tell=True)
    with pytest.raises(SlalomError, match="should be told is empty"):
        chatty.steer("the food", SAD, steps=1, tell=" ")


def test_constraints_never_read_what_the_model_is_told(chatty: SteerableModel) -> None:
    read: list[str] = []
    spy = Custom(lambda prompt, text: bool(read.append(prompt + text)) or True, "spy", description="is secret")
    (row,) = chatty.steer("the food", spy, steps=2).rows
    assert read
    assert not any("secret" in text or "Write" in text for text in read)
    assert all(text.startswith("the food") for text in read)
    assert "secret" not in row.text


def test_perplexity_is_that_of_the_model_told_nothing(chatty: SteerableModel) -> None:
    tokens: list[int] = []
    note = lambda rows: tokens.extend(rows[0].seen.draft.tokens[0].tolist())  # noqa: E731
    (told,) = chatty.steer("the food", SAD, steps=1, callbacks=(note,)).rows
    before = chatty.vocabulary.pieces("the food")
    logits = chatty.model(torch.tensor([before + tokens])).logits[0, len(before) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(tokens)).exp().item()
    assert told.perplexity == pytest.approx(expected, rel=1e-3)
    assert told.perplexity != pytest.approx(told.told_perplexity, rel=1e-3)


def test_the_unsteered_text_is_that_of_the_model_told_nothing(chatty: SteerableModel) -> None:
    (row,) = chatty.steer("the food", SAD, steps=2, compare=True).rows
    (own,) = chatty.steer("the food", SAD, sampler="none", tell=False).rows
    assert row.unsteered == own.text
    assert row.unsteered_perplexity == pytest.approx(own.perplexity)
    assert chatty.steer("the food", SAD, steps=2).rows[0].unsteered is None


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "lm-steer"])
def test_every_sampler_can_be_told(chatty: SteerableModel, sampler: str) -> None:
    wish = Keywords(["soup"])
    (row,) = chatty.steer("the food", wish, sampler=sampler, steps=2, length=4).rows
    assert row.told == "Write a short text that has to do with soup."


def test_told_rows_have_the_same_text_alone_and_in_a_batch(chatty: SteerableModel) -> None:
    prompts = ["the food", "an awful day in the city"]
    together = chatty.steer(prompts, Keywords(["soup"]), steps=3, samples=2, length=8).texts
    alone = [chatty.steer(prompt, Keywords(["soup"]), steps=3, samples=2, length=8).texts for prompt in prompts]
    assert together == [text for texts in alone for text in texts]
