"""On a device that is only pretended, nothing meets a tensor of another one, and the texts are the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.engine import TensorMemory, _with_room
from slalom.constraints.classifier import Classifier
from slalom.decoding import SAMPLERS
from slalom.types import Draft, Relaxed
from tests.conftest import tiny_classifier, tiny_lm
from tests.constraints.test_contract import CONSTRAINTS, ROWS, same_length
from tests.helpers import steer_folder
from tests.pretended import pretended

PROMPTS = ["the food was", "we", "we"]


def test_the_pretended_device_notices_a_tensor_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(monkeypatch):
        there, other, here = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1"), torch.ones(3)
        assert (there + torch.tensor(1.0)).tolist() == [2.0] * 3
        assert there.to(other.device).device == other.device
        for mixed in (lambda: there + here, lambda: there + other, lambda: there[here.long()], lambda: here @ there):
            with pytest.raises(RuntimeError, match="mixes devices"):
                mixed()


@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_stays_on_the_lms_device_and_writes_the_cpus_texts(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knobs = {"lm-steer": {"steer": str(steer_folder(tmp_path / "steer", scale=30.0))}}
    settings = {"sampler": name, "length": 5, "steps": 3, "knobs": knobs.get(name), "temperature": 1.0, "top_p": 0.9}
    on_cpu = fresh_lm().steer(PROMPTS, fresh_classifier(), **settings)  # type: ignore[arg-type]
    with pretended(monkeypatch, kind):
        lm = moved(fresh_lm(), f"{kind}:0")
        wish = fresh_classifier()  # the caller's, still on the CPU
        on_device = lm.steer(PROMPTS, wish, **settings)  # type: ignore[arg-type]
        assert wish.model.device == lm.device
    assert on_device.texts == on_cpu.texts
    assert on_device.scores == pytest.approx(on_cpu.scores, abs=1e-4)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_every_constraint_answers_on_the_lms_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended(monkeypatch):
        lm = moved(fresh_lm("llama-tied"), "cuda:0")
        constraint = CONSTRAINTS[name](lm)
        constraint.check(lm.vocabulary, 8)  # where the candidate table of an encoder is built
        draft = placed_draft(lm)
        candidates = torch.arange(100, 107, device=lm.device).expand(*draft.tokens.shape, -1)
        nothing = torch.zeros(*draft.tokens.shape, lm.vocabulary.size, device=lm.device)
        mixtures = nothing.scatter(-1, draft.tokens[..., None], 1.0).requires_grad_()
        relaxed = constraint.relaxed_score(relaxed_of(lm, draft, mixtures))
        (gradient,) = torch.autograd.grad(relaxed.sum(), mixtures)
        answers = [constraint.score(draft), constraint.candidate_scores(draft, candidates), gradient]
        answers += [constraint.satisfied(draft), constraint.prefix_score(draft), constraint.missing(draft)]
        assert {answer.device for answer in answers} == {lm.device}


def test_memory_spread_over_devices_is_selected_where_each_layer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.arange(24.0).view(3, 1, 2, 4)
    rows, take = [2, 0, 2], [True, False, True]
    with pretended(monkeypatch):
        spread = TensorMemory([numbers.to("cuda:0"), numbers.to("cuda:1")])
        chosen = torch.tensor(rows, device="cuda:0")
        for memory in (spread.select(chosen), spread.select(rows), TensorMemory(list(spread.tensors)).reorder(chosen)):
            check_spread(memory, numbers[rows])
        merged = spread.select([0, 1, 2]).where(torch.tensor(take, device="cuda:0"), spread.select([1, 1, 1]))
        check_spread(merged, numbers[[0, 1, 2]])
        wider = _with_room(spread, chosen, 1)
        check_spread(wider, torch.nn.functional.pad(numbers[rows], (0, 0, 0, 1)))


@pytest.mark.parametrize("name", ["dab", "bolt", "mucola", "cold", "lm-steer"])
def test_a_model_spread_over_two_devices_writes_the_cpus_texts(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    knobs = {"lm-steer": {"steer": str(steer_folder(tmp_path / "steer", scale=30.0))}}
    settings = {"sampler": name, "length": 5, "steps": 3, "knobs": knobs.get(name)}
    on_cpu = fresh_lm().steer(PROMPTS, fresh_classifier(), **settings)  # type: ignore[arg-type]
    with pretended(monkeypatch):
        on_devices = spread_lm().steer(PROMPTS, fresh_classifier(), **settings)  # type: ignore[arg-type]
    assert on_devices.texts == on_cpu.texts


def fresh_lm(shape: str = "llama-untied") -> SteerableModel:
    """With attention in torch's plain operations: a fused one makes its masks where the pretended device cannot see."""
    lm = tiny_lm(shape)
    lm.model.set_attn_implementation("eager")
    return lm


def fresh_classifier() -> Classifier:
    """Nobody else's, on the CPU, in float32."""
    model, tokenizer = tiny_classifier()
    return Classifier(model.float(), "good", tokenizer)


def moved(lm: SteerableModel, device: str) -> SteerableModel:
    """The same LM on a device."""
    model = lm.model.to(device)
    model.tie_weights()
    return SteerableModel(model, lm.tokenizer, lm.name)


def spread_lm() -> SteerableModel:
    """An LM whose last layer and head are on a second device, with inputs carried along as accelerate carries them."""
    lm = fresh_lm()
    body = lm.model.model
    lm.model.to("cuda:0")
    for part in (body.layers[1], body.norm, lm.model.lm_head):
        part.to("cuda:1")
    body.layers[1].register_forward_pre_hook(lambda *given: carried(given[1:], "cuda:1"), with_kwargs=True)
    lm.model.register_forward_hook(lambda module, given, out: type(out)(carried(dict(out), "cuda:0")))
    lm.model.hf_device_map = {"model.layers.1": "cuda:1", "": "cuda:0"}
    return SteerableModel(lm.model, lm.tokenizer, lm.name)


class Carried(torch.autograd.Function):
    """A tensor to a device, and its gradient back, which torch's own copy does for devices it knows."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        ctx.origin = tensor.device
        return tensor.to(device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.origin), None


def carried(value: Any, device: str) -> Any:
    """Whatever it is, its tensors on a device; a cache stays where it is."""
    if isinstance(value, torch.Tensor):
        return Carried.apply(value, torch.device(device))
    if isinstance(value, dict):
        return {key: carried(one, device) for key, one in value.items()}
    return type(value)(carried(one, device) for one in value) if isinstance(value, (tuple, list)) else value


def placed_draft(lm: SteerableModel) -> Draft:
    """A draft on the LM's device."""
    rows = same_length(lm, ROWS)
    tokens = torch.tensor([lm.vocabulary.pieces(text) for _, text in rows], device=lm.device)
    lengths = torch.full((len(rows),), tokens.shape[1], device=lm.device)
    prompts = [lm.encode(prompt, 1) for prompt, _ in rows]
    return lm.draft(prompts, tokens, lengths, torch.zeros(tokens.shape, device=lm.device))


def relaxed_of(lm: SteerableModel, draft: Draft, mixtures: torch.Tensor) -> Relaxed:
    """A draft's mixtures."""
    return Relaxed(lm.vocabulary, draft.prompts, mixtures)


def check_spread(memory: TensorMemory, expected: torch.Tensor) -> None:
    """Both tensors hold what is expected, each on its own device."""
    assert [str(tensor.device) for tensor in memory.tensors] == ["cuda:0", "cuda:1"]
    assert all(tensor.tolist() == expected.tolist() for tensor in memory.tensors)
