"""One LM and one classifier, several threads: each gets the texts it would get alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.steering import steering
from slalom.constraints.classifier import Classifier
from slalom.constraints.encoder import replaced_embeddings
from tests.conftest import tiny_classifier, tiny_lm
from tests.helpers import draft_of, steer_folder

PROMPTS = ["the food was", "a lovely day by the river with", "we"]
TURNS = 3

Setting = dict[str, object]


@pytest.mark.parametrize(
    "pair",
    [("dab", "dab"), ("dab", "lm-steer"), ("bolt", "dab"), ("bolt", "lm-steer"), ("bolt", "bolt"), ("mucola", "cold")],
    ids="-and-".join,
)
def test_two_threads_get_the_texts_that_one_after_the_other_gives(pair: tuple[str, str], tmp_path: Path) -> None:
    knobs: dict[str, Setting] = {"lm-steer": {"steer": str(steer_folder(tmp_path / "steer", scale=30.0))}}
    few = {"dab": 6, "bolt": 4, "mucola": 2, "cold": 2}

    def steer(lm: SteerableModel, wish: Classifier, sampler: str, seed: int) -> list[str]:
        steps = few.get(sampler)
        out = lm.steer(PROMPTS, wish, length=6, seed=seed, sampler=sampler, steps=steps, knobs=knobs.get(sampler))
        return out.texts

    asked = [(sampler, seed) for seed in range(TURNS) for sampler in pair]
    model, tokenizer = tiny_classifier()
    alone = [steer(tiny_lm("llama-untied"), Classifier(model, "good", tokenizer), *one) for one in asked]
    lm, wish, start = tiny_lm("llama-untied"), Classifier(model, "good", tokenizer), Barrier(2)

    def together(mine: list[tuple[str, int]]) -> list[list[str]]:
        start.wait()
        return [steer(lm, wish, *one) for one in mine]

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(together, [asked[::2], asked[1::2]])
    assert [first, second] == [alone[::2], alone[1::2]]
    assert not lm.model.get_output_embeddings()._forward_pre_hooks
    assert all(parameter.requires_grad for parameter in lm.model.parameters())


def test_a_steered_head_is_another_threads_own(llama: SteerableModel) -> None:
    ids = torch.tensor([[5, 6, 7]])
    plain = llama.model(ids).logits
    with steering(llama.model, lambda hidden: hidden + 1.0), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(lambda: llama.model(ids).logits).result(), plain)
        assert not torch.equal(llama.model(ids).logits, plain)


def test_replaced_embeddings_are_another_threads_own(llama: SteerableModel, good: Classifier) -> None:
    draft = draft_of(llama, [("the food was", " good and warm")])
    plain = good.score(draft)
    with replaced_embeddings(good.model, lambda words: 2 * words), ThreadPoolExecutor(1) as pool:
        assert torch.equal(pool.submit(good.score, draft).result(), plain)
        assert not torch.equal(good.score(draft), plain)
