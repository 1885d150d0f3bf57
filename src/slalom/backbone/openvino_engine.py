"""The LM on OpenVINO: converted once, with eight-bit weights, for CPUs. An extra: pip install slalom[openvino]."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import openvino as ov
import torch

from slalom.backbone import cache, progress
from slalom.backbone.engine import Memory, Pass, Prefix
from slalom.backbone.engines import FAILURES
from slalom.backbone.saved import SavedModel, known_as
from slalom.errors import SlalomError
from slalom.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HIDDEN = -1e9  # added to the attention scores of what must not be seen
SETTINGS = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",  # eight-bit activations differ with the batch: another text than alone
}
COMPILED = "compiled"  # in a converted model's folder: what OpenVINO keeps of it to compile it faster

_COMPILING = threading.Lock()


class OpenVINOEngine:
    """A stateful graph of the model: its cache lives inside, and is set back by assigning the states.

    It is warmed up beside whatever else is being loaded.
    """

    name = "openvino"

    def __init__(self, folder: Path, keep: bool = True) -> None:
        self.compiled = _compile(folder, keep)
        self._turn = threading.Lock()
        threading.Thread(target=self._warm_up).start()

    @torch.inference_mode()
    def _warm_up(self) -> None:
        """Read a few tokens together and one by itself: the first time, OpenVINO rearranges the weights for either."""
        few, row = torch.ones(1, 4, dtype=torch.long), torch.zeros(1, dtype=torch.long)
        self.start(self.prefill(Tokens(few, few)), row, 1, None).read(0, row, 1)

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""
        request = _Request(self.compiled, self._turn)
        positions = (prompts.mask.cumsum(-1) - 1).clamp(min=0)
        logits = request.read(prompts.ids, _seen(prompts.mask, prompts.ids.shape[1]), positions)
        return Prefix(request.memory, prompts.mask, logits)

    def start(self, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory | None) -> Pass:
        """A rollout in a request of its own, so that several may run side by side."""
        return _OpenVINOPass(_Request(self.compiled, self._turn), prefix, rows, room, memory or prefix.memory.select(rows))

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor) -> torch.Tensor:
        """Position by position: the graph gives the last one's logits alone."""
        prefix, count = self.prefill(prompts), len(tokens)
        run = self.start(prefix, torch.arange(count), tokens.shape[1], None)
        found, logits = torch.zeros(tokens.shape), prefix.logits
        for position, chosen in enumerate(tokens.T):
            if position:
                logits = run.read(position - 1, tokens[:, position - 1], count)
            found[:, position] = logits.log_softmax(-1).gather(-1, chosen[:, None])[:, 0]
        return found


class _OpenVINOPass:
    def __init__(self, request: _Request, prefix: Prefix, rows: torch.Tensor, room: int, memory: Memory) -> None:
        self.request, self.given, self.next = request, memory, -1
        self.prompt = prefix.mask.shape[1]
        self.mask = torch.cat([prefix.mask[rows], prefix.mask.new_ones(len(rows), room)], dim=1)
        self.positions = prefix.mask.sum(-1)[rows, None]  # [B, 1], of the continuation's first token

    @property
    def memory(self) -> Memory:
        """All that was read, or what was given if nothing was."""
        return self.given if self.next < 0 else self.request.memory

    def read(self, position: int, tokens: torch.Tensor, rows: int) -> torch.Tensor:
        """All rows go along, since the graph's state has them all; the waiting ones read what they have anyway."""
        column = self.prompt + position
        if position != self.next:
            self.request.memory = Memory([tensor[:, :, :column] for tensor in self.given.tensors])
        self.next = position + 1
        mask = _seen(self.mask[:, : column + 1], 1)
        return self.request.read(tokens[:, None], mask, self.positions + position)[:rows]


class _Request:
    """One inference request and its states.

    Requests of a graph run one after the other anyway. Here they take turns with everything they do: two threads that
    set their inputs at the same moment can wait for each other forever, one for the graph and one for Python.
    """

    def __init__(self, compiled: ov.CompiledModel, turn: threading.Lock) -> None:
        self.turn = turn
        with turn:
            self.request = compiled.create_infer_request()
            self.states = sorted(self.request.query_state(), key=lambda state: int(state.name.rsplit(".", 1)[1]))

    @property
    def memory(self) -> Memory:
        """A copy of the states."""
        with self.turn:
            return Memory([torch.from_numpy(np.array(state.state.data)) for state in self.states])

    @memory.setter
    def memory(self, memory: Memory) -> None:
        with self.turn:
            for state, tensor in zip(self.states, memory.tensors, strict=True):
                state.state = ov.Tensor(tensor.contiguous().numpy())

    def read(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """The logits [B, V] after the last of these tokens."""
        inputs = {
            "input_ids": ids.contiguous().numpy(),
            "mask": mask.numpy(),
            "position_ids": positions.contiguous().numpy(),
            "beam_idx": np.arange(len(ids), dtype=np.int32),
        }
        with self.turn:
            self.request.infer(inputs)
            return torch.from_numpy(np.array(self.request.get_output_tensor(0).data))


def _seen(mask: torch.Tensor, new: int) -> torch.Tensor:
    """What the last `new` of the columns [B, m] may look at, as numbers to add: float32 [B, 1, new, m]."""
    columns = torch.arange(mask.shape[1])
    visible = (columns <= columns[-new:, None]) & mask[:, None].bool()  # [B, new, m]
    return torch.where(visible, 0.0, HIDDEN)[:, None]


# A folder for every converted model, made once.


class Prepared(NamedTuple):
    """An engine, and how fast it was when it was made: milliseconds of a pass of one row."""

    engine: OpenVINOEngine
    milliseconds: dict[str, float]  # torch's and openvino's


def prepare(model: PreTrainedModel | SavedModel, again: bool = True) -> Prepared:
    """The engine for a model, from the cache after the first time, when the weights of a saved one stay on disk.

    A conversion that failed is remembered, and tried again only if asked to.
    """
    if model.device.type != "cpu":
        raise SlalomError(f"the openvino engine runs on a CPU and the model is on {model.device}; use torch")
    fingerprint = _fingerprint(model)
    place = cache.home() / "openvino" / fingerprint
    failure = cache.home() / FAILURES / f"{fingerprint}.json"
    if failure.is_file() and not again:
        raise SlalomError(json.loads(failure.read_text(encoding="utf-8"))["reason"])
    try:
        cache.made_once(place, lambda target: _convert(model, target))
    except SlalomError as error:
        if not again:
            progress.say(f"the openvino engine is not used: {error}")
        _remember(failure, known_as(model), str(error))
        raise
    failure.unlink(missing_ok=True)
    speed = json.loads((place / "speed.json").read_text(encoding="utf-8"))
    return Prepared(OpenVINOEngine(place), speed)


def _convert(model: PreTrainedModel | SavedModel, target: Path) -> None:
    """Fill the folder; what that needs is slow to import, so only now."""
    from slalom.backbone.openvino_conversion import make

    make(model.model if isinstance(model, SavedModel) else model, target)


def _remember(failure: Path, model: str, reason: str) -> None:
    """Write down why a model could not be converted."""
    failure.parent.mkdir(parents=True, exist_ok=True)
    beside = failure.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"model": model, "reason": reason}) + "\n", encoding="utf-8")
    beside.replace(failure)


def _fingerprint(model: PreTrainedModel | SavedModel) -> str:
    """A name for exactly this model, converted by exactly these versions: by its files, or else by its numbers."""
    if isinstance(model, SavedModel):
        own = [model.fingerprint]
    else:
        sums = (parameter.detach().double().sum().item() for parameter in model.parameters())
        own = [model.config.to_json_string(), *map(str, sums)]
    versions = [importlib.metadata.version(package) for package in ("openvino", "nncf", "torch")]
    return hashlib.sha256(json.dumps([own, versions]).encode()).hexdigest()[:16]


def _compile(folder: Path, keep: bool) -> ov.CompiledModel:
    """The graph, compiled; what OpenVINO can use of that next time is kept if it may be.

    Not beside anything else: to read what it kept, OpenVINO changes the locale of the whole process for a moment.
    """
    kept = folder / COMPILED
    if not keep or not os.access(folder, os.W_OK):
        return ov.Core().compile_model(folder / "model.xml", "CPU", SETTINGS)
    # With its weights: without them (OPTIMIZE_SIZE), OpenVINO 2026.4 reads back other numbers than it wrote.
    settings = SETTINGS | {"CACHE_DIR": str(kept), "CACHE_MODE": "OPTIMIZE_SPEED"}
    with _COMPILING, contextlib.nullcontext() if any(kept.glob("*.blob")) else cache.file_lock(folder):
        return ov.Core().compile_model(folder / "model.xml", "CPU", settings)
