"""A model folder to what is known of the model at once; its weights are read when they are first asked for.

The class of a model's config alone takes seconds to import, so what we need of it is written down once in the cache.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from slalom.backbone import cache
from slalom.backbone.placement import place
from slalom.errors import SlalomError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

READ = (".json", ".safetensors", ".bin")  # the files a model is made of
SAMPLE = 1 << 16  # bytes of each file's beginning and end that a fingerprint has
ANY_TOKENIZER = "TokenizersBackend"  # transformers' class of tokenizers that their tokenizer.json describes in full
POSITIONS = 512  # that an encoder has, if its config does not say


class Facts(NamedTuple):
    """What a config says that a text depends on."""

    model_type: str
    vocabulary: int  # rows of the input table
    context: int | None  # how many tokens the model can read, if that is said
    eos: list[int]  # every id that ends a text

    @staticmethod
    def of(config: PretrainedConfig, generation: GenerationConfig | None) -> Facts:
        """Those of a model: either config may name several ids that end a text."""
        text = config.get_text_config()
        said = [generation.eos_token_id if generation else None, text.eos_token_id]
        listed = [token for one in said for token in (one if isinstance(one, (list, tuple)) else [one])]
        eos = list(dict.fromkeys(token for token in listed if token is not None))
        return Facts(config.model_type, text.vocab_size, getattr(text, "max_position_embeddings", None), eos)


class EncoderFacts(NamedTuple):
    """What a constraint asks of an encoder besides its outputs."""

    labels: dict[int, str]  # by number; of no meaning unless the encoder is a classifier
    window: int  # how many tokens it reads

    @staticmethod
    def of(model: PreTrainedModel) -> EncoderFacts:
        """Those of an encoder in memory."""
        return EncoderFacts({number: str(name) for number, name in model.config.id2label.items()}, window(model))


class _Saved:
    """A model on disk, to run on the CPU: an engine that has a form of its own of it needs no weights."""

    device = torch.device("cpu")

    def __init__(self, folder: Path, dtype: torch.dtype, load: Callable[[], PreTrainedModel]) -> None:
        self.folder, self.dtype = folder, dtype
        self._load, self._lock = load, threading.Lock()
        self._model: PreTrainedModel | None = None

    @property
    def model(self) -> PreTrainedModel:
        """The model itself, read once, whichever thread asks first."""
        with self._lock:
            if self._model is None:
                with torch.inference_mode(False):  # whoever asks for a gradient next shares the weights
                    self._model = self._load().eval()
            return self._model

    @cached_property
    def files_fingerprint(self) -> str:
        """A hash of the model's files: another one whenever one of them is replaced."""
        return folder_fingerprint(self.folder)

    @cached_property
    def fingerprint(self) -> str:
        """The same, and another one for another precision."""
        return hashlib.sha256(f"{self.files_fingerprint} {self.dtype}".encode()).hexdigest()

    def _remembered(self, kind: str, read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Facts of a kind, from the cache after the first time."""
        version = importlib.metadata.version("transformers")
        folder = cache.home() / "facts" / f"{kind}-{self.fingerprint[:16]}-{version}"
        try:
            cache.made_once(folder, lambda target: _write(target / "facts.json", read()))
        except SlalomError:  # the cache cannot be written
            return read()
        return json.loads((folder / "facts.json").read_text(encoding="utf-8"))


class SavedModel(_Saved):
    """A causal LM on disk."""

    @cached_property
    def facts(self) -> Facts:
        """What its config says, read without the weights."""
        return Facts(**self._remembered("lm", lambda: self._read_facts()._asdict()))

    def _read_facts(self) -> Facts:
        from transformers import AutoConfig, GenerationConfig

        said = (self.folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(self.folder) if said else None
        return Facts.of(AutoConfig.from_pretrained(self.folder), generation)


class SavedEncoder(_Saved):
    """An encoder on disk."""

    @cached_property
    def facts(self) -> EncoderFacts:
        """What the model said of itself when it was read for the first time."""
        known = self._remembered("encoder", lambda: EncoderFacts.of(self.model)._asdict())
        return EncoderFacts({int(number): name for number, name in known["labels"].items()}, known["window"])

    def place(self, device: torch.device) -> torch.device:
        """Have the encoder on a device; where its inputs belong then. What was not read yet may stay on disk."""
        return device if self._model is None and device.type == "cpu" else place(self.model, device)


def encoder_facts(model: PreTrainedModel | SavedEncoder) -> EncoderFacts:
    """Those of an encoder in memory or on disk."""
    return model.facts if isinstance(model, SavedEncoder) else EncoderFacts.of(model)


def window(model: PreTrainedModel) -> int:
    """How many tokens an encoder reads: its positions, less those that RoBERTa's kind counts from."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(module.num_embeddings) - int(module.padding_idx) - 1
    said = getattr(model.config, "max_position_embeddings", None)
    return said if said and said > 0 else POSITIONS


def known_as(model: PreTrainedModel | SavedModel) -> str:
    """A model's name, if nobody gave it one."""
    return str(model.folder) if isinstance(model, SavedModel) else model.config.name_or_path or type(model).__name__


def is_quantised(folder: Path) -> bool:
    """Whether a model folder's weights are, so that transformers places them."""
    return "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))


def read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """A folder's or hub name's tokenizer; one whose class its folder names, without the class of the model's config.

    To import any class that belongs to a model takes half a second, so `ANY_TOKENIZER` is not asked of AutoTokenizer.
    """
    file = Path(source) / "tokenizer_config.json"
    said = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if said.get("tokenizer_class") == ANY_TOKENIZER and "auto_map" not in said:
        from transformers import TokenizersBackend

        return TokenizersBackend.from_pretrained(source)
    from transformers import AutoTokenizer, PretrainedConfig

    if "tokenizer_class" in said:
        return AutoTokenizer.from_pretrained(source, config=PretrainedConfig.from_pretrained(source))
    return AutoTokenizer.from_pretrained(source)


def forget_tokenizer_class(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have a tokenizer saved in a folder read as `ANY_TOKENIZER`, with what its own class says of its inputs."""
    file = folder / "tokenizer_config.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    _write(file, {**said, "tokenizer_class": ANY_TOKENIZER, "model_input_names": tokenizer.model_input_names})


def folder_fingerprint(folder: Path) -> str:
    """A model folder's place, and each file's size, time and a sample of it, as one number: read in milliseconds."""
    found = hashlib.sha256(str(folder.resolve()).encode())
    for file in sorted(file for file in folder.iterdir() if file.suffix in READ):
        stat = file.stat()
        found.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}".encode())
        with file.open("rb") as content:
            found.update(content.read(SAMPLE))
            content.seek(max(0, stat.st_size - SAMPLE))
            found.update(content.read(SAMPLE))
    return found.hexdigest()


def _write(file: Path, values: dict[str, Any]) -> None:
    file.write_text(json.dumps(values) + "\n", encoding="utf-8")
