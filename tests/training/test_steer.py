"""A trained steer: the loss falls, nothing else is trained, padding teaches nothing, a sampler can load it."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.steering import hidden_size
from slalom.decoding.lm_steer import load_steer
from slalom.errors import SlalomError
from slalom.training.data import Batch, Example
from slalom.training.steer import (
    SteerRecipe,
    check,
    endless,
    fit,
    fresh,
    next_token_losses,
    save,
    train_steer,
    values_of,
)
from tests.conftest import tiny_lm

RECIPE = SteerRecipe(("bad", "good"), rank=4, epsilon=0.1, steps=40, batch=4, learning_rate=0.02, regularisation=0.0)
TEXTS = {0: ["the food was bad", "the soup was cold", "an awful day"], 1: ["the food was good", "a lovely day"]}


def batch_of(lm: SteerableModel, texts: dict[int, list[str]] = TEXTS) -> Batch:
    rows = [Example(text, label) for label, some in texts.items() for text in some]
    return next(endless(rows, lm.tokenizer, replace(RECIPE, batch=8), random.Random(0)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "taste.jsonl"
    rows = [(text, label, split) for label, some in TEXTS.items() for text in some for split in ("train", "dev")]
    path.write_text("".join(json.dumps(dict(zip(("text", "label", "split"), row, strict=True))) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lm")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(root)
    lm.tokenizer.save_pretrained(root)
    return root


def test_training_lowers_the_loss_and_touches_the_matrices_alone(lm: SteerableModel) -> None:
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    model = lm.model.requires_grad_(False)
    steers = fresh(hidden_size(model), RECIPE, lm.device)
    batch = batch_of(lm)
    own = values_of(batch.labels, 2)
    first = next_token_losses(model, steers, batch, own).mean().item()
    fit(model, steers, iter([batch] * 40), RECIPE, lambda step, loss: None)
    with torch.no_grad():
        assert next_token_losses(model, steers, batch, own).mean().item() < first - 0.1
        other = next_token_losses(model, steers, batch, own * torch.tensor([-1, 1])).mean().item()
    assert next_token_losses(model, steers, batch, own).mean().item() < other
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    lm.model.requires_grad_(True)


def test_padding_is_not_trained_on(llama: SteerableModel) -> None:
    short, long = [5, 9, 11], [7, 8, 9, 10, 11, 12]
    ids, mask = torch.tensor([short + [0] * 3, long]), torch.tensor([[1] * 3 + [0] * 3, [1] * 6])
    steers = fresh(16, RECIPE, llama.device)
    values = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    together = next_token_losses(llama.model, steers, Batch(ids, mask, torch.tensor([1, 0])), values)
    alone = [
        next_token_losses(llama.model, steers, Batch(row[None], torch.ones_like(row[None]), label), value[None])
        for row, label, value in zip((torch.tensor(short), torch.tensor(long)), ([1], [0]), values, strict=True)
    ]
    assert len(together) == 2 + 5
    torch.testing.assert_close(together, torch.cat(alone))
    other = ids.masked_fill(mask == 0, 33)
    again = next_token_losses(llama.model, steers, Batch(other, mask, torch.tensor([1, 0])), values)
    torch.testing.assert_close(together, again)


def test_values_go_from_minus_one_to_one_and_the_dummy_is_always_one() -> None:
    assert values_of(torch.tensor([0, 1]), 2).tolist() == [[-1, 1], [1, 1]]
    assert values_of(torch.arange(5), 5)[:, 0].tolist() == [-1, -0.5, 0, 0.5, 1]


def test_texts_of_one_token_are_left_out(llama: SteerableModel) -> None:
    batch = batch_of(llama, {0: ["a"], 1: ["the food was good"]})
    assert batch.labels.tolist() == [1]
    with pytest.raises(SlalomError, match="two tokens or more"):
        batch_of(llama, {0: ["a"]})


def test_a_steer_is_saved_with_its_card_and_loaded_as_it_was(data: Path, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "steer"
    recipe = replace(RECIPE, lm=str(folder))
    seen: list[int] = []
    card = train_steer(
        [data], out, recipe, "slalom train steer", lambda line: None, lambda step, loss: seen.append(step)
    )
    assert seen == list(range(1, 41))
    assert card == json.loads((out / "card.json").read_text())
    for texts, own, other in (("bad texts", "bad", "good"), ("good texts", "good", "bad")):
        losses = card["next_token_loss"][texts]
        assert losses[f"steered to {own}"] < losses[f"steered to {other}"]
        assert losses[f"steered to {own}"] < losses["unsteered"]
    trained = load_steer(out)
    assert trained.labels == ("bad", "good")
    assert trained.steers.down.shape == (2, 16, 4)
    assert sorted(path.name for path in out.iterdir()) == ["card.json", "steer.safetensors"]
    assert not list(tmp_path.glob(".steer-*"))
    again = train_steer([data], tmp_path / "again", recipe, "slalom train steer", lambda line: None)
    assert again["next_token_loss"] == card["next_token_loss"]


def test_saved_matrices_are_those_that_were_trained(tmp_path: Path) -> None:
    steers = fresh(16, RECIPE, torch.device("cpu"))
    save(steers, tmp_path / "one", {"labels": ["bad", "good"], "epsilon": 0.1})
    torch.testing.assert_close(load_steer(tmp_path / "one").steers.down, steers.down.detach(), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"labels": ("one",)}, "a steer needs at least two"),
        ({"rank": 0}, "rank is 0; it must be at least 1"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"max_tokens": 1}, "max-tokens is 1; it must be at least 2"),
        ({"learning_rate": 0.0}, "learning-rate is 0; it must be above 0"),
        ({"regularisation": -1.0}, "regularisation is -1; it must be at least 0"),
    ],
)
def test_a_bad_recipe_is_refused(changed: dict[str, object], complaint: str) -> None:
    with pytest.raises(SlalomError, match=complaint):
        check(replace(RECIPE, **changed))  # type: ignore[arg-type]


def test_a_label_that_has_no_name_and_an_empty_split_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "so so", "label": 2, "split": "train"}\n')
    with pytest.raises(SlalomError, match="label 2; with labels bad, good it must be between 0 and 1"):
        train_steer([path], tmp_path / "out", RECIPE, "", lambda line: None)
    path.write_text('{"text": "so so", "label": 1, "split": "dev"}\n')
    with pytest.raises(SlalomError, match="no row of split 'train'"):
        train_steer([path], tmp_path / "out", RECIPE, "", lambda line: None)
    assert not (tmp_path / "out").exists()
