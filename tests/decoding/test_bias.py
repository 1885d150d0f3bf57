"""Bias vectors: the paper's formulas, by brute force."""

from __future__ import annotations

import pytest
import torch

from slalom.api import SteerableModel
from slalom.decoding.bias import NORMS, RECENT, SCHEDULES, bias_vector, distances, geometry, prepare


def brute_distances(table: torch.Tensor, token: int) -> torch.Tensor:
    return torch.stack([(table[token] - row).square().sum() for row in table])


def test_distances_and_their_norms_equal_brute_force(lm: SteerableModel) -> None:
    shape = geometry(lm.vocabulary)
    table = lm.vocabulary.embeddings.double()
    for token in (0, 7, 250):
        expected = brute_distances(table, token)
        assert torch.allclose(distances(shape, torch.tensor([token]), {})[0].double(), expected, atol=1e-4)
        assert shape.distance_norms[token].item() == pytest.approx(expected.norm().item(), rel=1e-5)


def test_the_bias_is_weight_times_norm_ratio_times_distance(llama: SteerableModel) -> None:
    shape = geometry(llama.vocabulary)
    logits = torch.randn(2, llama.vocabulary.size, generator=torch.Generator().manual_seed(0))
    tokens, weights = torch.tensor([5, 77]), torch.tensor([1.3, 0.4])
    sizes = {
        "centred": (logits - logits.mean(-1, keepdim=True)).norm(dim=-1),
        "logits": logits.norm(dim=-1),
        "log-probabilities": logits.log_softmax(-1).norm(dim=-1),
    }
    for name, norm in NORMS.items():
        bias = bias_vector(shape, tokens, logits, weights, norm, {})
        for row in range(2):
            away = brute_distances(shape.table, int(tokens[row]))
            expected = -weights[row] * sizes[name][row] / away.norm() * away
            assert torch.allclose(bias[row], expected, rtol=1e-3, atol=1e-4)


def test_the_bias_favours_its_own_token_most(llama: SteerableModel) -> None:
    tokens = torch.arange(10, 60)
    logits = torch.randn(50, llama.vocabulary.size, generator=torch.Generator().manual_seed(0))
    bias = bias_vector(geometry(llama.vocabulary), tokens, logits, torch.ones(50), NORMS["centred"], {})
    assert (bias.argmax(-1) == tokens).all()


def test_only_the_centred_norm_ignores_a_constant() -> None:
    logits = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(NORMS["centred"](logits + 5), NORMS["centred"](logits), atol=1e-4)
    assert not torch.allclose(NORMS["logits"](logits + 5), NORMS["logits"](logits), atol=1e-1)


def test_schedules_are_those_of_the_paper() -> None:
    assert [SCHEDULES["decreasing"](i, 4) for i in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert [SCHEDULES["increasing"](i, 4) for i in range(4)] == [0.0, 0.25, 0.5, 0.75]
    assert [SCHEDULES["constant"](i, 4) for i in range(4)] == [1.0, 1.0, 1.0, 1.0]


def test_prepared_distances_are_the_same_and_never_too_many(llama: SteerableModel) -> None:
    shape = geometry(llama.vocabulary)._replace(recent={})
    few, others = torch.tensor([5, 77, 5]), torch.arange(100, 100 + RECENT - 1)
    fresh = distances(shape, few, {})
    ready = prepare(shape, few)
    assert list(shape.recent) == list(ready) == [5, 77]
    assert torch.allclose(distances(shape, few, ready), fresh, atol=1e-5)
    prepare(shape, others)
    assert len(shape.recent) == RECENT
    assert set(others.tolist()) <= set(shape.recent)
    assert not prepare(shape, torch.arange(RECENT + 1))
    assert len(shape.recent) == RECENT


def test_what_was_prepared_stays_though_others_prepare_more(llama: SteerableModel) -> None:
    shape = geometry(llama.vocabulary)._replace(recent={})
    ready = prepare(shape, torch.tensor([5, 77]))
    prepare(shape, torch.arange(100, 100 + RECENT))
    assert 5 not in shape.recent
    assert torch.equal(distances(shape, torch.tensor([77, 5]), ready), torch.stack([ready[77], ready[5]]))
