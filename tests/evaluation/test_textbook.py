"""Our steps write the very tokens of the textbook, batched and at full vocabulary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slalom.api import SteerableModel
from slalom.decoding.dab import PAPER as PUBLISHED
from slalom.decoding.randomness import Rng
from slalom.evaluation.textbook import Textbook
from tests.constraints.test_contract import table_classifier
from tests.helpers import problem_of

PAPER = replace(PUBLISHED, top_k=20)


@pytest.mark.parametrize("norm", ["centred", "log-probabilities"])
def test_the_paper_preset_gives_the_same_tokens_as_the_textbook(lm: SteerableModel, norm: str) -> None:
    sampler, wish, prompts = replace(PAPER, norm=norm), table_classifier(lm), ["the food was"] * 3
    problem = problem_of(lm, prompts, wish)
    rng = Rng.from_seeds([5, 6, 7], lm.device)
    state = sampler.init(problem, rng.fold(1))
    book = Textbook(lm, wish, [lm.encode(prompt, 8) for prompt in prompts], 8, sampler)
    written = book.first()
    for step in range(2, 6):
        state, written = sampler.step(problem, state, rng.fold(step)), book.step(written, rng.fold(step))
        assert state.latest.tokens.tolist() == written.tokens.tolist()
    assert len(set(map(tuple, written.tokens.tolist()))) > 1
