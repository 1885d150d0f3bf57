"""An encoder's inputs to its outputs on OpenVINO, without gradients: converted once, for CPUs.

It runs in the fastest of several ways that is close to torch and gives a text the same outputs, to the last bit, in any
batch. Which is the fastest differs from CPU to CPU, so they are timed when it is converted. Eight bits are not among
them: docs/performance.md says why.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import openvino as ov
import torch
from torch import nn

from slalom.backbone import cache, progress
from slalom.backbone.openvino_graph import compile_model, cores
from slalom.errors import SlalomError

# Inputs are padded to a multiple of this many tokens: whole vectors. Sums over the padding are added up in vectors;
# shifted within these, their last bit changes, and a text's outputs would depend on the longest text beside it.
PADDED_TO = 16
CLOSE = 0.03  # of the outputs' spread on the examples: how far a way may be off, at the most
REPEATS = 5  # of the race between torch and openvino
TORCH = "torch"  # the way to run where openvino has no better one
EXACT = "f32"  # the way whose outputs are torch's

Encode = Callable[[dict[str, torch.Tensor]], torch.Tensor]  # the encoder's inputs by name, [B, m] each → [B, k]


class Way(NamedTuple):
    """A way of running a converted encoder."""

    settings: dict[str, str]
    needs: str  # what the CPU must be able to do


WAYS = {
    "bf16": Way({"INFERENCE_PRECISION_HINT": "bf16"}, "BF16"),
    "f32": Way({"INFERENCE_PRECISION_HINT": "f32"}, "FP32"),
}


class OpenVINOEncoder:
    """A compiled encoder that any thread may call."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.compiled, self._idle = compiled, list[ov.InferRequest]()

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The outputs [B, k] of inputs [B, m], by a request that nobody uses at the moment."""
        missing = -next(iter(inputs.values())).shape[1] % PADDED_TO
        padded = {name: nn.functional.pad(tensor, (0, missing)).numpy() for name, tensor in inputs.items()}
        try:
            request = self._idle.pop()
        except IndexError:
            request = self.compiled.create_infer_request()
        request.infer(padded)
        outputs = torch.from_numpy(np.array(request.get_output_tensor(0).data))
        self._idle.append(request)
        return outputs


def prepare(
    model: nn.Module | str, encode: Encode, example: dict[str, torch.Tensor], exact: bool = False
) -> OpenVINOEncoder | None:
    """The converted encoder, run in the way found fastest when it was made; none if that is torch.

    `exact` leaves torch and float32 to choose from, whose outputs are the same but for their last bits.
    """
    place = converted(model, encode, example)
    times = json.loads((place / "found.json").read_text(encoding="utf-8"))["milliseconds"]
    way = min((way for way in times if not exact or way in (TORCH, EXACT)), key=times.__getitem__)
    return None if way == TORCH else compiled(place, way, keep=True)


def converted(model: nn.Module | str, encode: Encode, example: dict[str, torch.Tensor]) -> Path:
    """The folder of `encode`, a function that calls the model, converted; from the cache after the first time.

    The model may be given as the fingerprint of its files: its numbers are not read then to know it.
    """
    place = cache.home() / "openvino" / f"encoder-{_fingerprint(model, encode, example)}"
    return cache.made_once(place, lambda target: _make(encode, example, target))


def compiled(folder: Path, way: str, keep: bool) -> OpenVINOEncoder:
    """A converted encoder, ready to run in one of the ways."""
    return OpenVINOEncoder(compile_model(folder, {"PERFORMANCE_HINT": "LATENCY"} | WAYS[way].settings, keep))


def possible_ways() -> list[str]:
    """The ways that this CPU has instructions for."""
    able = ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return [name for name, way in WAYS.items() if way.needs in able]


def _fingerprint(model: nn.Module | str, encode: Encode, example: dict[str, torch.Tensor]) -> str:
    """A name for exactly this function of exactly this model, converted by these versions for so many such cores."""
    ways = [WAYS[name] for name in possible_ways()]
    made_by = f"{encode.__qualname__} {sorted(example)} {ov.__version__} {torch.__version__} {ways} {PADDED_TO}"
    seen = hashlib.sha256(f"{made_by} {cores()}".encode())
    if isinstance(model, str):
        seen.update(model.encode())
        return seen.hexdigest()[:16]
    for name, tensor in model.state_dict().items():
        seen.update(f"{name} {tuple(tensor.shape)}".encode())
        seen.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return seen.hexdigest()[:16]


@torch.inference_mode()
def _make(encode: Encode, example: dict[str, torch.Tensor], target: Path) -> None:
    """Convert, and find the best way to run; what that needs is slow to import, so only now."""
    from slalom.backbone.openvino_conversion import silent_nncf

    with progress.spinner("converting a classifier for openvino, once"), progress.quiet_transformers(), silent_nncf():
        wanted = encode(example)  # before it is traced: weights may be read from disk only now
        try:
            graph = _convert(encode, example)
            ov.save_model(graph, target / "model.xml", compress_to_fp16=False)
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise SlalomError(f"openvino could not convert the classifier ({reason})") from error
        runs = {way: compiled(target, way, keep=False) for way in possible_ways()}
        good = {way: run for way, run in runs.items() if _is_close(run, example, wanted) and _is_steady(run, example)}
        milliseconds = _race({TORCH: encode, **good}, example)
        (target / "found.json").write_text(json.dumps({"milliseconds": milliseconds}), encoding="utf-8")


def _convert(encode: Encode, example: dict[str, torch.Tensor]) -> ov.Model:
    """The graph of `encode` for any number of texts of any length."""
    graph = ov.convert_model(_Encoder(encode, list(example)), example_input=tuple(example.values()))
    for port, name in zip(graph.inputs, example, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
    graph.validate_nodes_and_infer_types()
    return graph


def _is_close(run: Encode, example: dict[str, torch.Tensor], wanted: torch.Tensor) -> bool:
    """Whether the outputs are those wanted, nearly."""
    return bool((run(example) - wanted).abs().max() < CLOSE * wanted.std().clamp(min=1e-6))


def _is_steady(run: Encode, example: dict[str, torch.Tensor]) -> bool:
    """Whether a text's outputs are the same to the last bit alone, among more texts and beside a longer one."""
    outputs = run(example)
    short = {name: tensor[:, :PADDED_TO] for name, tensor in example.items()}
    wide = {
        name: torch.cat([tensor, torch.zeros_like(example[name][:, PADDED_TO:])], 1) for name, tensor in short.items()
    }
    fewer = [run({name: tensor[:count] for name, tensor in example.items()}) for count in (1, 2, 3)]
    more = run({name: tensor.repeat(4, 1) for name, tensor in example.items()})
    same = [torch.equal(rows, outputs[: len(rows)]) for rows in fewer]
    return all(same) and torch.equal(more, outputs.repeat(4, 1)) and torch.equal(run(wide), run(short))


def _race(runs: dict[str, Encode], example: dict[str, torch.Tensor]) -> dict[str, float]:
    """The median milliseconds of a call, each in turn, after a first one."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(1 + REPEATS):
        for name, run in runs.items():
            started = time.perf_counter()
            run(example)
            times[name].append(1000 * (time.perf_counter() - started))
    return {name: round(median(measured[1:]), 2) for name, measured in times.items()}


class _Encoder(nn.Module):
    """A function of named inputs as the module that the converter traces."""

    def __init__(self, encode: Encode, names: list[str]) -> None:
        super().__init__()
        self.encode, self.names = encode, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.encode(dict(zip(self.names, inputs, strict=True)))
