"""The LM on OpenVINO: converted once, with eight-bit weights, for CPUs. An extra: pip install slalom[openvino]."""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from slalom.backbone import cache, openvino_pass, openvino_sharing, progress
from slalom.backbone.engine import Memory, Pass, Prefix
from slalom.backbone.engines import FAILURES
from slalom.backbone.openvino_graph import compiled, cores
from slalom.backbone.openvino_pass import Graph, OpenVINOPass
from slalom.backbone.saved import SavedModel, known_as
from slalom.errors import SlalomError
from slalom.types import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

LAYOUT = 3  # of a converted model's folder


class EngineSettings(NamedTuple):
    """How a model is run best on this machine: fast, and so that a row's logits do not depend on its batch."""

    group: str  # of so many activations that are quantised together to eight bits; 0 leaves them as they are
    least_rows: int  # of a request


class OpenVINOEngine:
    """The converted model with its cache in blocks; compiled and warmed up beside whatever else is being loaded."""

    name = "openvino"
    pads = False

    def __init__(self, folder: Path, settings: EngineSettings) -> None:
        self.settings = settings
        self._making: concurrent.futures.Future[Graph] = concurrent.futures.Future()
        threading.Thread(target=self._make, args=(folder, settings)).start()

    @functools.cached_property
    def graph(self) -> Graph:
        """When it is ready."""
        return self._making.result()

    def _make(self, folder: Path, settings: EngineSettings) -> None:
        try:
            graph = Graph(compiled(folder, settings.group), settings.least_rows)
            _warm_up(graph)
        except BaseException as error:
            self._making.set_exception(error)
        else:
            self._making.set_result(graph)

    def prefill(self, prompts: Tokens) -> Prefix:
        """Read the prompts once."""
        return openvino_pass.prefill(self.graph, prompts)

    def start(self, prefix: Prefix, rows: torch.Tensor, places: list[int], room: int, memory: Memory | None) -> Pass:
        """A rollout in blocks of its own, so that several may run side by side."""
        return OpenVINOPass(self.graph, prefix, rows, places, memory)

    def log_probs(self, prompts: Tokens, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """All positions of a text in one pass."""
        return openvino_pass.log_probs(self.graph, prompts, tokens, lengths)

    def side_by_side(self, tasks: list[Callable[[], T]]) -> list[T]:
        """At once, each in a thread of its own: their rollouts share passes."""
        return openvino_sharing.side_by_side(self.graph, tasks)


@torch.inference_mode()
def _warm_up(graph: Graph) -> None:
    """Read a few tokens together and one by itself: the first time, OpenVINO rearranges the weights for either."""
    few, row = torch.ones(1, 4, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    OpenVINOPass(graph, openvino_pass.prefill(graph, Tokens(few, few)), row, [0], None).read(0, row, row)


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
    found = json.loads((place / "found.json").read_text(encoding="utf-8"))
    return Prepared(OpenVINOEngine(place, EngineSettings(**found["way"])), found["milliseconds"])


def _convert(model: PreTrainedModel | SavedModel, target: Path) -> None:
    """Fill the folder; what that needs is slow to import, so only now."""
    from slalom.backbone.openvino_conversion import make

    make(model.model if isinstance(model, SavedModel) else model, target)


def _remember(failure: Path, model: str, reason: str) -> None:
    """Write down why a model could not be converted."""
    cache.write(failure, json.dumps({"model": model, "reason": reason}) + "\n")


def _fingerprint(model: PreTrainedModel | SavedModel) -> str:
    """A name for exactly this model, by its files or else its numbers, converted by these versions on so many cores."""
    if isinstance(model, SavedModel):
        own = [model.fingerprint]
    else:
        sums = (parameter.detach().double().sum().item() for parameter in model.parameters())
        own = [model.config.to_json_string(), *map(str, sums)]
    versions = [importlib.metadata.version(package) for package in ("openvino", "nncf", "torch")]
    return hashlib.sha256(json.dumps([LAYOUT, own, versions, cores()]).encode()).hexdigest()[:16]
