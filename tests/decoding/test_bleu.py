"""Differentiable BLEU: how near keywords are to being written."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.constraints import Keywords
from slalom.decoding.bleu import bleu
from slalom.decoding.randomness import Rng

RNG = Rng.from_seeds([0, 1], torch.device("cpu"))


def some_log_probs(llama: SteerableModel, n: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(2, n, llama.vocabulary.size, generator=generator)).log_softmax(-1)


def bleu_of(llama: SteerableModel, wish: Keywords, log_probs: torch.Tensor) -> torch.Tensor:
    return bleu(wish.spelling_groups(llama.vocabulary), log_probs, RNG)


def test_it_is_the_expected_log_probability_over_places_and_spellings(llama: SteerableModel) -> None:
    keywords, log_probs = Keywords(["soup"]), some_log_probs(llama)
    expected = []
    for row in range(2):
        matches, noise = [], []
        for number, spelling in enumerate(keywords.spellings(llama.vocabulary)):
            for start in range(6 - len(spelling.tokens) + 1):
                own = [log_probs[row, start + k, token].item() for k, token in enumerate(spelling.tokens)]
                matches.append(sum(own) / len(own))
                noise.append(RNG.select([row]).gumbel(torch.tensor([[number * 6 + start]])).item())
        where = (torch.tensor(matches) + torch.tensor(noise)).softmax(-1)
        expected.append((where * torch.tensor(matches)).sum().item())
    assert bleu_of(llama, keywords, log_probs).tolist() == pytest.approx(expected, rel=1e-4)


def test_its_gradient_pushes_keywords_that_are_most_unlikely(llama: SteerableModel) -> None:
    keywords = Keywords(["soup"])
    tokens = {token for spelling in keywords.spellings(llama.vocabulary) for token in spelling.tokens}
    logits = torch.zeros(2, 6, llama.vocabulary.size)
    logits[..., list(tokens)] = -40.0
    logits.requires_grad_()
    (gradient,) = torch.autograd.grad(bleu_of(llama, keywords, logits.log_softmax(-1)).sum(), logits)
    assert gradient[..., list(tokens)].sum((1, 2)).tolist() == pytest.approx([1.0, 1.0], abs=1e-3)


def test_all_asks_for_every_word_and_any_for_one(llama: SteerableModel) -> None:
    log_probs = some_log_probs(llama).clone()
    soup = next(s.tokens for s in Keywords(["soup"]).spellings(llama.vocabulary))
    for k, token in enumerate(soup):
        log_probs[:, k, token] = 0.0
    wishes = [Keywords(["soup", "kayak"]), Keywords(["soup", "kayak"], "all"), Keywords(["soup"])]
    one, both, alone = (bleu_of(llama, wish, log_probs) for wish in wishes)
    assert (one > -0.5).all()
    assert (alone > -0.5).all()
    assert (both < one).all()


def test_a_word_that_does_not_fit_counts_for_nothing(llama: SteerableModel) -> None:
    keywords = Keywords(["sunrise kayak"])
    assert bleu_of(llama, keywords, some_log_probs(llama, n=1)).tolist() == [0.0, 0.0]
