"""Prompts, chats and stop strings, as they reach the model."""

from __future__ import annotations

import html

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints.classifier import Classifier
from slalom.errors import SlalomError
from tests.conftest import CORPUS, tiny_lm
from tests.helpers import unsteered

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}we said "


@pytest.fixture(scope="module")
def chatty() -> SteerableModel:
    lm = tiny_lm("llama-tied")
    lm.tokenizer.chat_template = TEMPLATE
    return lm


def test_a_chat_goes_through_the_template_and_the_constraint_reads_the_answer_alone(
    chatty: SteerableModel, good: Classifier
) -> None:
    prompt = chatty.encode_chat([{"role": "user", "content": "the soup"}], 8)
    assert chatty.tokenizer.decode(prompt.ids) == "user: the soup\nwe said "
    (row,) = chatty.steer("the soup", good, chat=True, length=8, steps=2).rows
    assert row.prompt == "the soup"
    tokens = torch.tensor([chatty.vocabulary.pieces(row.text)])
    alone = chatty.draft([prompt], tokens, torch.tensor([tokens.shape[1]]), torch.zeros(tokens.shape))
    assert alone.texts == [row.text]
    assert row.score == pytest.approx(good.score(alone).item(), abs=1e-4)


def test_a_list_of_messages_is_one_chat_and_a_list_of_lists_several(chatty: SteerableModel, good: Classifier) -> None:
    said = [{"role": "user", "content": "the soup"}]
    one = chatty.steer(said, good, length=6, steps=1)
    several = chatty.steer([said, [*said, {"role": "user", "content": "the rain"}]], good, length=6, steps=1)
    assert [row.prompt for row in one.rows] == ["the soup"]
    assert [row.prompt for row in several.rows] == ["the soup", "the rain"]
    assert several.texts[0] == one.texts[0]


@pytest.mark.parametrize(
    ("prompts", "complaint"),
    [
        ([{"role": "user", "content": " "}], "the message is empty"),
        ([{"role": "user", "content": "a"}, "b"], "are mixed"),
        ([], "no prompt given"),
    ],
)
def test_a_chat_that_cannot_be_answered_is_refused(
    chatty: SteerableModel, good: Classifier, prompts: list[object], complaint: str
) -> None:
    with pytest.raises(SlalomError, match=complaint):
        chatty.steer(prompts, good)  # type: ignore[arg-type]


def test_a_model_without_a_chat_template_says_so(llama: SteerableModel, good: Classifier) -> None:
    with pytest.raises(SlalomError, match="has no chat template"):
        llama.steer("hello", good, chat=True)


def test_no_text_holds_a_stop_string(llama: SteerableModel, good: Classifier) -> None:
    free = llama.steer("the food was", good, length=12, samples=4, steps=4, free=True)
    stop = free.texts[0][3:5]
    cut = llama.steer("the food was", good, length=12, samples=4, steps=4, stop=[stop], compare=True)
    assert all(stop not in row.text and stop not in row.unsteered for row in cut.rows)


def test_an_empty_stop_string_is_refused(llama: SteerableModel, good: Classifier) -> None:
    with pytest.raises(SlalomError, match="stop string is empty"):
        llama.steer("the food was", good, stop=[""])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sampler": "nobody"}, "unknown sampler 'nobody'; choose from climb"),
        ({"preset": "nothing"}, "unknown preset 'nothing'; choose from default"),
        ({"temperature": -1.0}, "temperature is -1; it must be at least 0"),
        ({"top_p": 0.0}, "top_p is 0; it must be above 0 and at most 1"),
        ({"repetition_penalty": 0.5}, "repetition_penalty is 0.5; it must be at least 1"),
    ],
)
def test_settings_nobody_knows_are_refused(
    llama: SteerableModel, good: Classifier, settings: dict[str, object], complaint: str
) -> None:
    with pytest.raises(SlalomError, match=complaint):
        llama.steer("the food was", good, **settings)  # type: ignore[arg-type]


def test_the_repetition_penalty_asked_for_is_the_rollouts(llama: SteerableModel, good: Classifier) -> None:
    def unsteered_by(**asked: float) -> list[str]:
        return [
            row.unsteered
            for row in llama.steer(["the food was", "we"], good, length=12, steps=1, compare=True, **asked).rows
        ]

    own = {penalty: unsteered(llama, ["the food was", "we"], 12, repetition_penalty=penalty) for penalty in (1.0, 3.0)}
    assert unsteered_by(repetition_penalty=1.0) == own[1.0].draft.texts
    assert unsteered_by(repetition_penalty=3.0) == own[3.0].draft.texts
    assert unsteered_by() == unsteered_by(repetition_penalty=1.2)
    assert own[1.0].draft.texts != own[3.0].draft.texts


def test_a_batch_of_prompts_of_1_to_200_tokens_gives_the_same_texts_as_one_by_one(good: Classifier) -> None:
    lm = tiny_lm("llama-tied")
    lm.model.config.max_position_embeddings = 256  # rotary positions have no table to run out of
    passage = lm.vocabulary.pieces(" ".join(CORPUS * 12).replace("\n", " "))
    sizes = [1, 200, *range(2, 200, 6)][:32]
    prompts = [lm.vocabulary.decode([passage[size : 2 * size]])[0] for size in sizes]
    together = lm.steer(prompts, good, length=8, steps=4).texts
    alone = [lm.steer(prompt, good, length=8, steps=4).texts[0] for prompt in prompts]
    assert len(prompts) == 32
    assert max(len(lm.encode(prompt, 8).ids) for prompt in prompts) == 200
    assert together == alone


def test_a_result_shows_itself_in_a_notebook_as_an_escaped_table(llama: SteerableModel, good: Classifier) -> None:
    out = llama.steer(["<b>soup</b>", "the rain"], good, length=4, steps=1, compare=True)
    table = out._repr_html_()
    assert "<b>" not in table
    assert "&lt;b&gt;soup&lt;/b&gt;" in table
    assert table.count("<tr>") == 3
    for row in out.rows:
        assert html.escape(row.text) in table
        assert html.escape(row.unsteered or "") in table
        assert f"{row.constraints[0].name} ({row.constraints[0].probability:.3f})" in table
    assert "unsteered" not in llama.steer("the rain", good, length=4, steps=1)._repr_html_()
