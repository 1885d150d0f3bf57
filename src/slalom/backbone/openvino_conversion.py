"""A model to a folder that the OpenVINO engine runs: traced, made stateful, compressed to eight bits, checked."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import nncf
import numpy as np
import openvino as ov
import torch
from openvino import opset13 as ops
from openvino.passes import MakeStateful, Manager
from torch.nn import functional as F
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer
from transformers.masking_utils import AttentionMaskInterface

from slalom.backbone import progress
from slalom.backbone.engine import Engine, TransformersEngine
from slalom.backbone.openvino_engine import EngineSettings, OpenVINOEngine
from slalom.backbone.openvino_graph import compiled
from slalom.backbone.openvino_pass import TRIED, steady_rows
from slalom.errors import SlalomError
from slalom.types import Tokens

ATTENTION = "slalom-openvino"
# Activations in eight bits, by groups of so many, where a row's text does not depend on its batch then; or not at all.
GROUPS = ("32", "0")
CLOSE = 0.1  # nats between the converted model's next-token distribution and the original's, at the most


def make(model: PreTrainedModel, target: Path) -> None:
    """Convert, compress the weights to eight bits, check against the original, and time both."""
    if getattr(model.config.get_text_config(), "sliding_window", None):
        raise SlalomError("the openvino engine cannot run models with a sliding window yet; use the torch engine")
    with progress.spinner("converting the model for openvino, once"), progress.quiet_transformers(), silent_nncf():
        try:
            graph = convert(model)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise SlalomError(f"openvino could not convert the model ({reason}); use the torch engine") from error
        compressed = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
        ov.save_model(compressed, target / "model.xml", compress_to_fp16=False)
        way = _steadiest(target, model)
        engines: dict[str, Engine] = {"torch": TransformersEngine(model), "openvino": OpenVINOEngine(target, way)}
        _check(engines)
        found = {"way": way._asdict(), "milliseconds": _race(engines)}
        (target / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _steadiest(folder: Path, model: PreTrainedModel) -> EngineSettings:
    """The first way of quantising activations with which a row's logits do not depend on its batch."""
    config, failures = model.config.get_text_config(), list[Exception]()
    longest = getattr(config, "max_position_embeddings", None) or TRIED
    for group in GROUPS:
        try:
            least = steady_rows(compiled(folder, group), config.vocab_size, longest)
        except Exception as error:  # this CPU has no kernel for it
            failures.append(error)
            continue
        if least is not None:
            return EngineSettings(group, least)
    if len(failures) == len(GROUPS):
        reason = str(failures[-1]).strip().splitlines()[-1]  # where it happened comes before
        raise SlalomError(f"openvino cannot run the model ({reason}); use the torch engine")
    return EngineSettings(GROUPS[-1], 1)  # as steady as it gets: rounding errors are left


@torch.inference_mode()
def convert(model: PreTrainedModel) -> ov.Model:
    """A float32 graph of one pass whose cache is its state, with attention in the form OpenVINO fuses with it.

    A model of another precision is converted from a float32 copy: the tracer cannot mix the two.
    """
    if model.dtype != torch.float32:
        model = copy.deepcopy(model).float()
    ids, positions = torch.ones(2, 2, dtype=torch.long), torch.tensor([[3, 4], [3, 4]])
    with _plain_attention(model):
        cache = Cache(layer_class_to_replicate=DynamicLayer)
        model(torch.ones(2, 3, dtype=torch.long), attention_mask=torch.zeros(2, 1, 3, 3), past_key_values=cache)
        past = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        graph = ov.convert_model(_OnePass(model), example_input=(ids, torch.zeros(2, 1, 2, 5), positions, *past))
    for port, name in zip(graph.inputs[:3], ("input_ids", "mask", "position_ids"), strict=True):
        port.get_tensor().set_names({name})
    shapes = [[-1, -1], [-1, 1, -1, -1], [-1, -1], *([-1, past[0].shape[1], -1, past[0].shape[3]] for _ in past)]
    for port, shape in zip(graph.inputs, shapes, strict=True):
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    graph.validate_nodes_and_infer_types()
    _make_stateful(graph, len(past))
    return graph


class _OnePass(torch.nn.Module):
    """Tokens and the caches before them to the logits after each and the caches with them."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = Cache(layers=[_Past(keys, values) for keys, values in zip(past[::2], past[1::2], strict=True)])
        out = self.model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        present = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        return (out.logits.float(), *present)


class _Past(DynamicLayer):  # type: ignore[misc]
    """A layer of the cache that has read something already."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True


def _make_stateful(graph: ov.Model, count: int) -> None:
    """Turn inputs past.i and outputs present.i into states, each reordered by `beam_idx` when it is read."""
    pairs = {f"past.{i}": f"present.{i}" for i in range(count)}
    for i, (past, present) in enumerate(pairs.items()):
        graph.inputs[3 + i].get_tensor().set_names({past})
        graph.outputs[1 + i].get_tensor().set_names({present})
    order = ops.parameter([-1], ov.Type.i32, name="beam_idx")
    order.output(0).get_tensor().set_names({"beam_idx"})
    graph.add_parameters([order])
    heads, width = (int(graph.input("past.0").get_partial_shape()[i].get_length()) for i in (1, 3))
    for past in pairs:
        port = graph.input(past)
        readers = port.get_target_inputs()
        gathered = ops.gather(port, order, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(gathered.output(0))
    graph.validate_nodes_and_infer_types()
    manager = Manager()
    manager.register_pass(MakeStateful(pairs))
    manager.run_passes(graph)
    batch = ops.gather(ops.shape_of(graph.input("input_ids"), output_type="i64"), ops.constant([0]), ops.constant(0))
    rest = ops.constant(np.array([heads, 0, width], dtype=np.int64))
    empty = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, rest], 0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            node.set_arguments([empty.output(0)])
    graph.validate_nodes_and_infer_types()


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as OpenVINO recognises it: heads repeated by broadcast and reshape, a mask that is added."""
    if softcap is not None:
        raise SlalomError("attention with capped scores is not supported")
    batch, heads, length, width = key.shape
    groups = query.shape[1] // heads
    if groups > 1:
        key, value = (
            tensor[:, :, None].expand(batch, heads, groups, length, width).reshape(batch, heads * groups, length, width)
            for tensor in (key, value)
        )
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


@contextlib.contextmanager
def _plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """While open, the model computes attention by `_attention`, with exactly the mask it is given."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionMaskInterface.register(ATTENTION, lambda *args, attention_mask=None, **kwargs: attention_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@contextlib.contextmanager
def silent_nncf() -> Iterator[None]:
    """Its tables, bars and the tracer's warnings are not for our user."""
    logger = logging.getLogger("nncf")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _probe() -> Tokens:
    """Two small prompts of different lengths."""
    return Tokens(torch.tensor([[0, 0, 5, 6], [7, 8, 9, 10]]), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))


@torch.inference_mode()
def _check(engines: dict[str, Engine]) -> None:
    """Refuse a conversion whose predictions are not the original's."""
    original, converted = (engine.prefill(_probe()).logits.log_softmax(-1) for engine in engines.values())
    divergence = F.kl_div(converted, original, log_target=True, reduction="batchmean").item()
    if not divergence < CLOSE:
        raise SlalomError(f"the model converted for openvino predicts otherwise ({divergence:.2f} nats); use torch")


@torch.inference_mode()
def _race(engines: dict[str, Engine]) -> dict[str, float]:
    """Median milliseconds of a one-position pass of one row, both engines in turn."""
    row = torch.zeros(1, dtype=torch.long)
    runs = {name: engine.start(engine.prefill(_probe()), row, [0], 12, None) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for step in range(12):
        for name, run in runs.items():
            started = time.perf_counter()
            run.read(step, row, row)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: round(median(measured[2:]), 2) for name, measured in times.items()}
