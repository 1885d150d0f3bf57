"""Judges on tiny models: their figures are what their definitions say."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi
from transformers import BertModel

from slalom.backbone import weights
from slalom.errors import SlalomError
from slalom.evaluation import judges
from slalom.evaluation.judges import (
    BertScoreJudge,
    ClassifierJudge,
    JudgeInfo,
    JudgeInput,
    PerplexityJudge,
    ToneJudge,
    judge_set,
)
from tests.conftest import tiny_classifier, tiny_lm

INPUTS = [
    JudgeInput("the food", " was good and warm", ["the soup was warm"]),
    JudgeInput("we", " hated the rain", ["the soup was warm", "we hated the rain"]),
    JudgeInput("a day", " by the river with a kayak at sunrise", []),
]
INFO = JudgeInfo("somebody", "tiny", "r0")


@pytest.fixture
def classifier() -> ClassifierJudge:
    model, tokenizer = tiny_classifier()
    return ClassifierJudge(model, tokenizer, 1, INFO)


@pytest.fixture(params=["gpt2-tied", "llama-untied"])
def perplexity(request: pytest.FixtureRequest) -> PerplexityJudge:
    lm = tiny_lm(request.param)
    lm.tokenizer.bos_token = "<eos>"
    return PerplexityJudge(lm.model, lm.tokenizer, INFO)


@pytest.fixture
def bertscore() -> BertScoreJudge:
    model, tokenizer = tiny_classifier()
    encoder = model.bert.float()
    assert isinstance(encoder, BertModel)
    return BertScoreJudge(encoder, tokenizer, 1, INFO)


def test_a_classifier_gives_the_probability_of_its_label(classifier: ClassifierJudge) -> None:
    found = classifier.score(INPUTS, "text")
    for one, value in zip(INPUTS, found, strict=True):
        alone = classifier.tokenizer(one.prompt + one.text, return_tensors="pt")
        expected = classifier.model(**alone).logits.softmax(-1)[0, 1].item()
        assert value == pytest.approx(expected, abs=1e-6)


def test_the_continuation_alone_is_judged_without_its_prompt(classifier: ClassifierJudge) -> None:
    whole = [JudgeInput("", one.text, []) for one in INPUTS]
    assert classifier.score(INPUTS, "continuation") == pytest.approx(classifier.score(whole, "text"))
    assert classifier.score(INPUTS, "continuation") != pytest.approx(classifier.score(INPUTS, "text"))


def test_perplexity_is_that_of_hugging_face_with_bos_before(perplexity: PerplexityJudge) -> None:
    found = perplexity.score(INPUTS, "text")
    for one, value in zip(INPUTS, found, strict=True):
        ids = [0, *perplexity.tokenizer(one.prompt + one.text)["input_ids"]]
        loss = perplexity.model(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item()
        assert value == pytest.approx(math.exp(loss), rel=1e-4)


def test_perplexity_of_the_continuation_counts_its_tokens_alone(perplexity: PerplexityJudge) -> None:
    (found,) = perplexity.score(INPUTS[:1], "continuation")
    prompt, text = INPUTS[0].prompt, INPUTS[0].text
    before = perplexity.tokenizer(prompt)["input_ids"]
    ids = [0, *perplexity.tokenizer(prompt + text)["input_ids"]]
    assert ids[1 : 1 + len(before)] == before
    labels = [-100] * (1 + len(before)) + ids[1 + len(before) :]
    loss = perplexity.model(torch.tensor([ids]), labels=torch.tensor([labels])).loss.item()
    assert found == pytest.approx(math.exp(loss), rel=1e-4)


def test_a_text_without_tokens_has_no_perplexity(perplexity: PerplexityJudge) -> None:
    assert perplexity.score([JudgeInput("we", "", [])], "continuation") == [None]
    assert perplexity.score([JudgeInput("", "", [])], "text") == [None]


def test_bertscore_precision_is_the_mean_best_cosine_of_the_best_reference(bertscore: BertScoreJudge) -> None:
    def embedded(text: str) -> torch.Tensor:
        out = bertscore.model(**bertscore.tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        return torch.nn.functional.normalize(out.hidden_states[1][0, 1:-1], dim=-1)

    found = bertscore.score(INPUTS, "text")
    for one, value in zip(INPUTS[:2], found[:2], strict=True):
        own = embedded(one.prompt + one.text)
        expected = max((own @ embedded(other).T).max(-1).values.mean().item() for other in one.references)
        assert value == pytest.approx(expected, abs=1e-5)
    assert found[1] == pytest.approx(1.0, abs=1e-5)  # it is one of its references
    assert found[2] is None  # nothing to compare it with


def test_a_judge_that_was_not_trained_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judges, "JUDGE_FOLDER", tmp_path)
    with pytest.raises(SlalomError, match="the judge toxicity has not been trained"):
        judge_set("ours")["toxicity"]()


def test_the_papers_judges_say_when_no_hub_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: HfApi, source: str, timeout: float) -> None:
        raise OSError("no route to anywhere")

    monkeypatch.setattr(HfApi, "model_info", refuse)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda source, file: None)
    for load in judge_set("paper").values():
        with pytest.raises(SlalomError, match=r"no model hub can be reached \(no route to anywhere\)"):
            load()


def test_unknown_judges_are_refused() -> None:
    with pytest.raises(SlalomError, match="unknown judges 'mine'; choose from ours, paper"):
        judge_set("mine")


def test_a_judge_of_tone_gives_the_likeliest_class_its_sign_and_its_probability() -> None:
    model, tokenizer = tiny_classifier(("negative", "neutral", "positive"))
    judge = ToneJudge(model, tokenizer, JudgeInfo("sentiment", "tiny", "r1"))
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]])
    likeliest = logits.softmax(-1).max().item()
    assert judge._values(logits).tolist() == pytest.approx([-likeliest, 0.0, likeliest])
    inputs = [JudgeInput("the food", text, []) for text in (" was good", " was bad and cold", "")]
    for value, one in zip(judge.score(inputs, "text"), inputs, strict=True):
        own = model(**tokenizer([one.shown("text")], return_tensors="pt")).logits.float()
        assert value == pytest.approx(judge._values(own).item(), abs=1e-5)


@pytest.mark.parametrize("name", ["acceptability", "sentiment", "sentiment-sst2", "sentiment-yelp", "toxicity"])
def test_a_shipped_judge_has_a_body_of_its_own_and_says_what_it_is_worth(name: str) -> None:
    card = json.loads((judges.JUDGE_FOLDER / name / "card.json").read_text())
    assert card["body"] == "mpnet-base"  # the guides' is another
    assert card["body"] in weights.WEIGHTS
    assert min(card["accuracy"].values()) > 0.6
    assert min(card.get("mcc", {"": 1.0}).values()) > 0.2  # two labels only
    assert card["command"].startswith("slalom train classifier")
