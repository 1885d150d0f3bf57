"""Training: what is saved is what was trained, and a constraint can load it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import slalom
from slalom.constraints import classifier
from slalom.training.classifier import ClassifierRecipe, train_classifier
from tests.helpers import draft_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small task: polite or not."""
    path = tmp_path_factory.mktemp("data") / "tone.jsonl"
    texts = {
        0: ["give me {} now", "where is my {} , hurry", "i want {}"],
        1: ["please , may i have {}", "thank you for {}"],
    }
    things = ["soup", "the bill", "a chair", "water", "the book", "tea", "a ticket", "the key", "bread", "time"]
    lines = [
        json.dumps({"text": text.format(thing), "label": label, "split": "train" if number % 4 else "test"})
        for label, patterns in texts.items()
        for text in patterns
        for number, thing in enumerate(things)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("lm", [None, "smollm2-135m-instruct"], ids=["own tokens", "the LM's table"])
def test_a_trained_classifier_is_loaded_as_a_constraint(
    rows: Path, tmp_path: Path, lm: str | None, default_lm: slalom.SteerableModel
) -> None:
    recipe = ClassifierRecipe(labels=("rude", "polite"), lm=lm, epochs=30.0, batch=16, learning_rate=1e-3)
    card = train_classifier(
        [rows], tmp_path / "tone", recipe, "slalom train classifier tone.jsonl", say=lambda line: None
    )
    assert card["accuracy"]["tone, as it is"] > 0.8
    polite = classifier(str(tmp_path / "tone"), "polite")
    kind, harsh = (
        draft_of(default_lm, [("please", ", may i have the salt")]),
        draft_of(default_lm, [("give", " me the salt now")]),
    )
    assert polite.score(kind) > polite.score(harsh)
    assert not list(tmp_path.glob(".tone-*"))
