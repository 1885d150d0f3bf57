"""Steering inside transformers' own generate: what it honours, what it refuses, and what it leaves as it was."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation import EosTokenCriteria, TemperatureLogitsWarper

import slalom
from slalom.api import SteerableModel
from slalom.backbone import model as backbone
from slalom.backbone.vocabulary import Vocabulary
from slalom.constraints.classifier import Classifier
from slalom.constraints.constraint import Constraint
from slalom.errors import SlalomError
from tests.conftest import tiny_lm
from tests.helpers import unsteered

EXACTLY = {"max_new_tokens": 12, "min_new_tokens": 12}


class Custom(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores


class Impatient(StoppingCriteria):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.ones(len(input_ids), dtype=torch.bool)


def generated(lm: SteerableModel, constraint: Constraint, asked: dict[str, Any], **settings: Any) -> list[str]:
    """What generate gives for a prompt, its continuation alone."""
    steering = slalom.custom_generate(constraint, lm.tokenizer, **{"steps": 2} | settings)
    inputs = lm.tokenizer(["the food was"], return_tensors="pt")
    tokens = lm.model.generate(**inputs, custom_generate=steering, pad_token_id=0, **EXACTLY | asked)
    assert tokens[:, : inputs["input_ids"].shape[1]].tolist() == inputs["input_ids"].tolist() * len(tokens)
    return lm.tokenizer.batch_decode(tokens[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_generate_gives_the_text_that_steer_gives(lm: SteerableModel) -> None:
    wish = slalom.Keywords(["soup"])
    expected = lm.steer("the food was", wish, length=12, steps=8, seed=3, tell=False, compare=True)
    assert generated(lm, wish, {}, steps=8, seed=3) == expected.texts
    assert expected.texts != [expected.rows[0].unsteered]


def test_sampling_and_several_texts_a_prompt_are_those_of_steer(llama: SteerableModel, good: Classifier) -> None:
    drawn = {"temperature": 0.7, "top_p": 0.9}
    expected = llama.steer("the food was", good, length=12, steps=2, samples=3, **drawn)
    assert generated(llama, good, {"do_sample": True, "num_return_sequences": 3, **drawn}) == expected.texts
    assert len(set(expected.texts)) == 3


def test_the_repetition_penalty_is_generates_or_else_the_one_given_or_else_ours(
    llama: SteerableModel, good: Classifier
) -> None:
    own = {
        penalty: unsteered(llama, ["the food was"], 12, repetition_penalty=penalty).draft.texts
        for penalty in (1.0, 1.2, 3.0)
    }
    assert own[1.0] != own[3.0]
    assert generated(llama, good, {}, steps=1) == own[1.2]
    assert generated(llama, good, {"repetition_penalty": 3.0}, steps=1) == own[3.0]
    assert generated(llama, good, {}, steps=1, repetition_penalty=1.0) == own[1.0]
    assert generated(llama, good, {"repetition_penalty": 3.0}, steps=1, repetition_penalty=1.0) == own[3.0]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"logits_processor": LogitsProcessorList([Custom()])}, "Custom"),
        ({"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.3)])}, "TemperatureLogitsWarper"),
        ({"stopping_criteria": StoppingCriteriaList([Impatient()])}, "Impatient"),
        ({"stopping_criteria": StoppingCriteriaList([EosTokenCriteria(7)])}, "EosTokenCriteria"),
        ({"eos_token_id": 7}, "EosTokenCriteria"),
        ({"bad_words_ids": [[5]]}, "NoBadWordsLogitsProcessor"),
        ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
        ({"max_time": 1.0}, "MaxTimeCriteria"),
        ({"prefix_allowed_tokens_fn": lambda row, tokens: [5]}, "PrefixConstrainedLogitsProcessor"),
        ({"num_beams": 3}, "num_beams=3"),
        ({"do_sample": True, "top_k": 7}, "top_k=7"),
        ({"do_sample": True, "min_p": 0.1}, "MinPLogitsWarper"),
        ({"min_new_tokens": 5}, "min_new_tokens=5"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_name(
    llama: SteerableModel, good: Classifier, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(SlalomError, match=f"cannot apply {named}[ ;]"):
        generated(llama, good, asked)


def test_embeddings_instead_of_tokens_are_refused(llama: SteerableModel, good: Classifier) -> None:
    embeddings = llama.model.get_input_embeddings()(torch.tensor([[5, 6]])).detach()
    steering = slalom.custom_generate(good, llama.tokenizer, steps=2)
    with pytest.raises(SlalomError, match="cannot apply inputs_embeds"):
        llama.model.generate(inputs_embeds=embeddings, custom_generate=steering, pad_token_id=0, **EXACTLY)


def test_settings_that_change_nothing_are_accepted(llama: SteerableModel, good: Classifier) -> None:
    plain = generated(llama, good, {})
    config = GenerationConfig(**EXACTLY, num_beams=1, no_repeat_ngram_size=0, remove_invalid_values=True)
    steering = slalom.custom_generate(good, llama.tokenizer, steps=2)
    inputs = llama.tokenizer(["the food was"], return_tensors="pt")
    tokens = llama.model.generate(**inputs, generation_config=config, custom_generate=steering)
    assert llama.tokenizer.decode(tokens[0, inputs["input_ids"].shape[1] :]) == plain[0]
    assert generated(llama, good, {"renormalize_logits": True, "eos_token_id": 0, "use_cache": False}) == plain


def test_every_part_of_the_model_is_left_in_the_mode_it_was_in(good: Classifier) -> None:
    lm = tiny_lm("llama-tied")
    lm.model.train()
    lm.model.model.layers[0].eval()
    before = [module.training for module in lm.model.modules()]
    generated(lm, good, {})
    assert [module.training for module in lm.model.modules()] == before
    with pytest.raises(SlalomError):
        generated(lm, good, {"num_beams": 3})
    assert [module.training for module in lm.model.modules()] == before


def test_a_models_tables_are_made_once_and_again_only_after_training(
    good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Vocabulary] = []

    def counted(*args: Any) -> Vocabulary:
        made.append(Vocabulary(*args))
        return made[-1]

    lm = tiny_lm("llama-tied")
    monkeypatch.setattr(backbone, "Vocabulary", counted)
    steering = slalom.custom_generate(good, lm.tokenizer, steps=2)
    inputs = lm.tokenizer(["the food was"], return_tensors="pt")

    def text(steering: Any) -> list[int]:
        return lm.model.generate(**inputs, custom_generate=steering, pad_token_id=0, **EXACTLY)[0].tolist()

    assert text(steering) == text(steering)
    assert len(made) == 1
    table = lm.model.get_input_embeddings().weight
    table.grad = torch.randn_like(table)
    torch.optim.SGD([table], lr=1.0).step()
    trained = text(steering)
    assert len(made) == 2
    assert trained == text(slalom.custom_generate(good, lm.tokenizer, steps=2))


def test_a_steering_keeps_no_model_alive(good: Classifier) -> None:
    lm = tiny_lm("llama-tied")
    steering = slalom.custom_generate(good, lm.tokenizer, steps=2)
    inputs = lm.tokenizer(["the food was"], return_tensors="pt")
    lm.model.generate(**inputs, custom_generate=steering, pad_token_id=0, **EXACTLY)
    model = weakref.ref(lm.model)
    del lm
    gc.collect()
    assert model() is None


def test_several_prompts_of_a_long_text_have_as_many_tokens_as_were_asked_for(llama: SteerableModel) -> None:
    """One row's blocks end sooner than the other's."""
    wish = slalom.Keywords(["soup"])
    prompts = [llama.tokenizer("the food was").input_ids, llama.tokenizer("an awful day in the").input_ids]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in prompts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in prompts])
    for length in (40, 45, 50):
        asked = {"max_new_tokens": length, "min_new_tokens": length, "pad_token_id": 0}
        steering = slalom.custom_generate(wish, llama.tokenizer, steps=6)
        tokens = llama.model.generate(ids, attention_mask=mask, custom_generate=steering, **asked)
        assert tokens.shape == (2, width + length)
