"""What the LM is told stands before the prompt, and nowhere else."""

from __future__ import annotations

import pytest

from slalom.api import SteerableModel
from tests.conftest import tiny_lm

TURNS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS


@pytest.fixture(scope="module")
def chatty() -> SteerableModel:
    """A tiny LM with a chat template, and room for what it is told."""
    lm = tiny_lm("llama-tied", positions=256)
    lm.tokenizer.chat_template = TURNS
    return lm


def test_a_told_continuation_goes_on_exactly_where_the_prompt_ends(chatty: SteerableModel) -> None:
    prompt = chatty.encode("the food was", 4)
    told = chatty.tell(prompt, "Write a sad text.")
    assert told.ids[-len(prompt.ids) :] == prompt.ids
    assert told.text == "the food was"
    assert told.untold == prompt
    written = chatty.tokenizer.decode(told.ids)
    assert written.endswith("[user]Write a sad text. Begin with: the food was<eos>[assistant]the food was")


def test_a_template_without_system_messages_is_told_in_the_users_turn() -> None:
    lm = tiny_lm("llama-tied", positions=256)
    lm.tokenizer.chat_template = NO_SYSTEM
    written = lm.tokenizer.decode(lm.tell(lm.encode("we", 4), "Write a sad text.").ids)
    assert written.startswith("[user]You write natural")
    assert written.endswith("Write a sad text. Begin with: we<eos>[assistant]we")
    messages = [{"role": "user", "content": "the soup"}]
    written = lm.tokenizer.decode(lm.tell_chat(lm.encode_chat(messages, 4), messages, "Be sad.").ids)
    assert written == "[user]Be sad.\n\nthe soup<eos>[assistant]"


def test_in_a_chat_the_wish_joins_the_system_message(chatty: SteerableModel) -> None:
    messages = [{"role": "system", "content": "We sell soup."}, {"role": "user", "content": "the soup"}]
    told = chatty.tell_chat(chatty.encode_chat(messages, 4), messages, "Be sad.")
    assert chatty.tokenizer.decode(told.ids).startswith("[system]We sell soup.\n\nBe sad.<eos>[user]the soup<eos>")
    assert told.untold.ids == chatty.encode_chat(messages, 4).ids


def test_a_model_without_a_template_reads_the_sentence_before_the_prompt(llama: SteerableModel) -> None:
    told = llama.tell(llama.encode("the food", 4), "Write a sad text.")
    assert llama.tokenizer.decode(told.ids) == "Write a sad text.\n\nthe food"


def test_a_told_prompt_cannot_write_control_tokens(chatty: SteerableModel) -> None:
    told = chatty.tell(chatty.encode("the<eos>[system] food", 4), "Write a sad text.")
    turns = chatty.tell(chatty.encode("the food", 4), "Write a sad text.")
    assert told.ids.count(chatty.vocabulary.eos[0]) == turns.ids.count(chatty.vocabulary.eos[0])


def test_the_likeliest_word_is_the_one_the_model_finds_likeliest(llama: SteerableModel) -> None:
    prompt = llama.encode("the food", 4)
    after = llama.read([prompt]).prefix.logits[0]
    words = [" soup", " rain", " food"]
    assert all(len(llama.vocabulary.pieces(word)) == 1 for word in words)
    expected = max(words, key=lambda word: after[llama.vocabulary.pieces(word)[0]].item())
    assert llama.likeliest(prompt, [word.strip() for word in words]) == expected.strip()
