"""Adapters on a tiny MPNet: which layers they change, what the card says, and that they load again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import MPNetConfig, MPNetModel, PreTrainedModel, PreTrainedTokenizerBase

from slalom.api import SteerableModel
from slalom.backbone import openvino_encoder, weights
from slalom.backbone.saved import folder_fingerprint
from slalom.constraints import loading
from slalom.constraints.classifier import Classifier
from slalom.constraints.loading import load_classifier, open_classifier, read_classifier
from slalom.errors import SlalomError
from slalom.training.classifier import (
    ClassifierRecipe,
    build,
    calibration_error,
    matthews,
    predictions,
    sure_from,
    train_classifier,
)
from slalom.training.data import read_rows
from tests.conftest import word_piece_tokenizer
from tests.helpers import draft_of

TEXTS = {0: ["the food was bad", "the rain was cold", "an awful day"], 1: ["the soup was good", "a lovely day"]}


@pytest.fixture
def body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A random MPNet of three layers, where an embedded encoder would lie."""
    tokenizer = word_piece_tokenizer()
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
        pad_token_id=tokenizer.pad_token_id,
    )
    MPNetModel(config).save_pretrained(tmp_path / "body")
    tokenizer.save_pretrained(tmp_path / "body")
    monkeypatch.setattr(weights, "ensure", lambda name: tmp_path / "body")
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "home"))
    return "tiny-mpnet"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Five texts, four times, in three splits."""
    path = tmp_path / "tone.jsonl"
    splits = ("train", "train", "test", "dev")
    lines = [
        json.dumps({"text": text, "label": label, "split": split})
        for split in splits
        for label, texts in TEXTS.items()
        for text in texts
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_only_the_last_layers_are_adapted_when_a_number_is_given(body: str) -> None:
    adapter = build(ClassifierRecipe(body=body, layers=1, rank=2)).adapter
    trained = [name for name, parameter in adapter.named_parameters() if parameter.requires_grad]
    assert {part for name in trained for part in name.split(".") if part in "qkvo"} == set("qkvo")
    assert all("layer.2." in name or "classifier" in name for name in trained)


def test_more_layers_than_there_are_is_an_error(body: str) -> None:
    with pytest.raises(SlalomError, match="layers is 4; tiny-mpnet has 1 to 3"):
        build(ClassifierRecipe(body=body, layers=4))


def test_training_measures_on_every_other_split_and_saves_what_loads_again(
    body: str, rows: Path, tmp_path: Path
) -> None:
    recipe = ClassifierRecipe(
        ("bad", "good"), body, split="train", layers=2, rank=4, epochs=60.0, batch=5, learning_rate=5e-3
    )
    card = train_classifier([rows], tmp_path / "tone", recipe, "a command", say=lambda line: None)
    assert card["rows"] == 10
    assert card["accuracy"]["tone, as it is"] == 1.0
    assert card["mcc"]["tone, as it is"] == 1.0
    model, tokenizer = load_classifier(str(tmp_path / "tone"))
    logits = model(**tokenizer(["an awful day", "a lovely day"], return_tensors="pt", padding=True)).logits
    assert logits.argmax(-1).tolist() == [0, 1]


def test_an_adapter_is_merged_once_and_again_when_it_has_changed(
    body: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged: list[Path] = []
    load_adapter = loading._load_adapter

    def counting(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        merged.append(folder)
        return load_adapter(folder)

    monkeypatch.setattr(loading, "_load_adapter", counting)

    def logits() -> list[float]:
        open_classifier.cache_clear()
        model, tokenizer = load_classifier(str(tmp_path / "tone"))
        return model(**tokenizer(["a lovely day"], return_tensors="pt")).logits[0].tolist()

    found = []
    for seed in (0, 1):
        recipe = ClassifierRecipe(("bad", "good"), body, layers=2, rank=4, epochs=2.0, batch=5, seed=seed)
        train_classifier([rows], tmp_path / "tone", recipe, "", say=lambda line: None)
        direct, tokenizer = load_adapter(tmp_path / "tone")
        expected = direct(**tokenizer(["a lovely day"], return_tensors="pt")).logits[0].tolist()
        found += [logits(), logits()]
        assert found[-1] == found[-2] == expected
    assert found[0] != found[2]
    assert len(merged) == 2


def test_an_adapter_read_from_the_cache_is_known_by_its_files_and_any_other_model_by_its_numbers(
    body: str, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ClassifierRecipe(("bad", "good"), body, layers=2, rank=4, epochs=1.0, batch=5)
    train_classifier([rows], tmp_path / "tone", recipe, "", say=lambda line: None)
    known = Classifier(str(tmp_path / "tone"), "good")
    known.model.save_pretrained(tmp_path / "saved")
    known.tokenizer.save_pretrained(tmp_path / "saved")
    other = Classifier(str(tmp_path / "saved"), "good")
    given: list[object] = []
    monkeypatch.setattr(openvino_encoder, "prepare", lambda model, encode, example: given.append(model))
    for constraint in (known, other):
        constraint.prepare(torch.device("cpu"))
    (folder,) = (tmp_path / "home" / "classifiers").glob("tone-*")
    assert given == [folder_fingerprint(folder), other.model]


def test_an_adapters_weights_stay_on_disk_until_a_gradient_is_asked_for(
    body: str, rows: Path, tmp_path: Path, llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = ClassifierRecipe(("bad", "good"), body, layers=2, rank=4, epochs=1.0, batch=5)
    train_classifier([rows], tmp_path / "tone", recipe, "", say=lambda line: None)
    draft = draft_of(llama, [("the food was", " good and warm")])
    Classifier(str(tmp_path / "tone"), "good").score(draft)  # merged, and what is to be known of it found out
    read: list[str] = []
    monkeypatch.setattr(openvino_encoder, "prepare", lambda *given: lambda inputs: torch.tensor([[1.0, 3.0]]))
    monkeypatch.setattr(loading, "read_classifier", lambda source: read.append(source) or read_classifier(source))
    open_classifier.cache_clear()
    constraint = Classifier(str(tmp_path / "tone"), "good")
    assert constraint.score(draft).tolist() == [2.0]
    assert read == []
    assert constraint.candidate_scores(draft, draft.tokens[..., None]).abs().sum() > 0
    assert len(read) == 1


def test_fewer_rows_are_drawn_when_a_number_is_given(body: str, rows: Path, tmp_path: Path) -> None:
    recipe = ClassifierRecipe(("bad", "good"), body, split="dev", rows=3, layers=1, epochs=1.0)
    assert train_classifier([rows], tmp_path / "tone", recipe, "", say=lambda line: None)["rows"] == 3


def test_a_split_without_rows_is_an_error(body: str, rows: Path, tmp_path: Path) -> None:
    with pytest.raises(SlalomError, match=r"no row of tone\.jsonl is of the split 'other'"):
        train_classifier([rows], tmp_path / "tone", ClassifierRecipe(body=body, split="other"), "")


def test_matthews_correlation_of_hand_counted_tables() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 4 true negatives: (2·4 - 1·1) / sqrt(3·3·5·5)
    predicted, true = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0]), torch.tensor([1, 1, 0, 1, 0, 0, 0, 0])
    assert matthews(predicted, true) == pytest.approx(7 / 15)
    assert matthews(torch.ones(4), torch.tensor([0, 1, 0, 1])) == 0.0


def test_the_temperature_is_part_of_the_saved_head_and_its_rows_are_not_measured(body: str, tmp_path: Path) -> None:
    def trained(calibrated: bool) -> tuple[dict[str, object], torch.Tensor]:
        splits = ["train", "calibration", "test"] if calibrated else ["train", "test"]
        lines = [
            json.dumps({"text": text, "label": label if split != "calibration" else 1 - label, "split": split})
            for split in splits
            for label, texts in TEXTS.items()
            for text in texts
        ]
        (tmp_path / "tone.jsonl").write_text("\n".join(lines) + "\n")
        out = tmp_path / f"out-{calibrated}"
        recipe = ClassifierRecipe(("bad", "good"), body, epochs=20.0, batch=5, learning_rate=5e-3)
        card = train_classifier([tmp_path / "tone.jsonl"], out, recipe, "", say=lambda line: None)
        model, tokenizer = load_classifier(str(out))
        return card, model(**tokenizer(["an awful day"], return_tensors="pt")).logits[0]

    plain_card, plain = trained(False)
    card, cooled = trained(True)  # its calibration rows all say the contrary: the less sure, the better
    assert plain_card["temperature"] is None
    assert card["temperature"] == pytest.approx(5.01, abs=0.02)
    assert card["accuracy"] == plain_card["accuracy"]
    assert torch.allclose(cooled * card["temperature"], plain, atol=0.05)  # type: ignore[operator]


def test_a_verdict_is_sure_from_where_it_is_right_19_times_of_20() -> None:
    probabilities = torch.cat([torch.full((20,), 0.6), torch.full((40,), 0.8)])
    right = torch.cat([torch.arange(20) < 10, torch.arange(40) < 39])
    assert sure_from(probabilities, right) == 0.61  # below that, ten more are wrong
    assert sure_from(probabilities, torch.zeros(60, dtype=torch.bool)) == 0.99
    assert sure_from(probabilities[-10:], right[-10:]) == 0.99  # too few to tell


def test_the_calibration_error_is_how_far_confidence_is_from_accuracy() -> None:
    sure = torch.tensor([[0.9, 0.1]] * 10)
    assert calibration_error(sure, torch.tensor([0] * 9 + [1])) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(sure, torch.tensor([0] * 5 + [1] * 5)) == pytest.approx(0.4)


def test_dropout_reaches_adapter_and_body_and_is_off_again_when_it_is_measured(
    body: str, rows: Path, tmp_path: Path
) -> None:
    adapter = build(ClassifierRecipe(body=body, rank=2, dropout=0.3)).adapter
    own = [module.p for module in adapter.modules() if isinstance(module, torch.nn.Dropout)]
    assert set(own) == {0.3}
    recipe = ClassifierRecipe(body=body, rank=2, dropout=0.3, epochs=1.0, batch=4)
    cards = [train_classifier([rows], tmp_path / "tone", recipe, "…", say=lambda line: None) for _ in range(2)]
    assert cards[0]["accuracy"] == cards[1]["accuracy"]
    model = build(recipe)
    model.adapter.train()
    (row,) = read_rows([rows], ("test",), 60)[:1]
    assert len({predictions(model, [row], recipe)[0][0, 0].item() for _ in range(5)}) == 1


def test_shares_are_learned_as_such(body: str, tmp_path: Path) -> None:
    path = tmp_path / "half.jsonl"
    lines = [{"text": text, "label": [0.5, 0.5], "split": "train"} for text in TEXTS[0] + TEXTS[1]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = ClassifierRecipe(body=body, rank=2, epochs=40.0, batch=5, learning_rate=1e-2)
    train_classifier([path], tmp_path / "half", recipe, "…", say=lambda line: None)
    model, tokenizer = load_classifier(str(tmp_path / "half"))
    logits = model(**tokenizer(TEXTS[0], return_tensors="pt", padding=True)).logits
    assert (logits[:, 0] - logits[:, 1]).abs().max() < 0.5
