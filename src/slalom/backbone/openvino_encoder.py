"""An encoder's inputs to its outputs on OpenVINO, without gradients: converted once, for CPUs.

In bfloat16 where the CPU has it: on 1,000 texts as fast as eight bits, an eighth as far from float32, and to the last
bit the same in any batch.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import openvino as ov
import torch
from torch import nn

from slalom.backbone import cache, progress
from slalom.backbone.openvino_engine import compile_model
from slalom.errors import SlalomError

LENGTHS = 8  # inputs are padded to multiples of this, so that few shapes are met
CLOSE = 0.1  # of the outputs' spread: how far the converted encoder's may be off, at the most
REPEATS = 5  # of the race between torch and openvino

Encode = Callable[[dict[str, torch.Tensor]], torch.Tensor]  # the encoder's inputs by name, [B, m] each → [B, k]


class OpenVINOEncoder:
    """A compiled encoder that any thread may call."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self.compiled, self.own = compiled, threading.local()

    def __call__(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The outputs [B, k] of inputs [B, m], in a request of this thread's own."""
        if not hasattr(self.own, "request"):
            self.own.request = self.compiled.create_infer_request()
        missing = -next(iter(inputs.values())).shape[1] % LENGTHS
        padded = {name: nn.functional.pad(tensor, (0, missing)).numpy() for name, tensor in inputs.items()}
        self.own.request.infer(padded)
        return torch.from_numpy(np.array(self.own.request.get_output_tensor(0).data))


def prepare(
    model: nn.Module, encode: Encode, example: dict[str, torch.Tensor], files: str | None = None
) -> OpenVINOEncoder | None:
    """The converted encoder, if it was faster than torch when it was made."""
    place = converted(model, encode, example, files)
    milliseconds = json.loads((place / "speed.json").read_text(encoding="utf-8"))
    return compiled(place, keep=True) if milliseconds["openvino"] < milliseconds["torch"] else None


def converted(model: nn.Module, encode: Encode, example: dict[str, torch.Tensor], files: str | None = None) -> Path:
    """The folder of `encode`, a function that calls the model, converted; from the cache after the first time.

    `files` is the fingerprint of the folder that the model's numbers come from, where that is known; they are not read
    again then.
    """
    place = cache.home() / "openvino" / f"encoder-{_fingerprint(model, encode, example, files)}"
    return cache.made_once(place, lambda target: _make(encode, example, target))


def compiled(folder: Path, keep: bool) -> OpenVINOEncoder:
    """A converted encoder, ready to run."""
    precision = "bf16" if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    return OpenVINOEncoder(compile_model(folder, settings, keep))


def _fingerprint(model: nn.Module, encode: Encode, example: dict[str, torch.Tensor], files: str | None) -> str:
    """A name for exactly this function of exactly this model, converted by exactly these versions."""
    seen = hashlib.sha256(f"{encode.__qualname__} {sorted(example)} {ov.__version__} {torch.__version__}".encode())
    if files is not None:
        seen.update(files.encode())
        return seen.hexdigest()[:16]
    for name, tensor in model.state_dict().items():
        seen.update(f"{name} {tuple(tensor.shape)}".encode())
        seen.update(tensor.detach().contiguous().view(torch.uint8).numpy())
    return seen.hexdigest()[:16]


@torch.inference_mode()
def _make(encode: Encode, example: dict[str, torch.Tensor], target: Path) -> None:
    """Convert, check against the original, and time both; what that needs is slow to import, so only now."""
    from slalom.backbone.openvino_conversion import silent_nncf

    with progress.spinner("converting a classifier for openvino, once"), progress.quiet_transformers(), silent_nncf():
        try:
            graph = ov.convert_model(_Encoder(encode, list(example)), example_input=tuple(example.values()))
        except Exception as error:
            reason = str(error).strip().splitlines()[0]
            raise SlalomError(f"openvino could not convert the classifier ({reason})") from error
        for port, name in zip(graph.inputs, example, strict=True):
            port.get_tensor().set_names({name})
            port.get_node().set_partial_shape(ov.PartialShape([-1, -1]))
        graph.validate_nodes_and_infer_types()
        ov.save_model(graph, target / "model.xml", compress_to_fp16=False)
        fast, wanted = compiled(target, keep=False), encode(example)
        if not (fast(example) - wanted).abs().max() < CLOSE * wanted.std().clamp(min=1e-6):
            raise SlalomError("the classifier converted for openvino gives other scores")
        speed = {"torch": _milliseconds(lambda: encode(example)), "openvino": _milliseconds(lambda: fast(example))}
        (target / "speed.json").write_text(json.dumps(speed), encoding="utf-8")


def _milliseconds(run: Callable[[], torch.Tensor]) -> float:
    """The median time of a call, after a first one."""
    times = []
    for _ in range(1 + REPEATS):
        started = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - started))
    return round(median(times[1:]), 2)


class _Encoder(nn.Module):
    """A function of named inputs as the module that the converter traces."""

    def __init__(self, encode: Encode, names: list[str]) -> None:
        super().__init__()
        self.encode, self.names = encode, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.encode(dict(zip(self.names, inputs, strict=True)))
