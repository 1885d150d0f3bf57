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
from slalom.errors import SlalomError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

READ = (".json", ".safetensors", ".bin")  # the files a model is made of
SAMPLE = 1 << 16  # bytes of each file's beginning and end that a fingerprint has


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


class SavedModel:
    """A causal LM on disk, to run on the CPU: an engine that has a form of its own of it needs no weights."""

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
                self._model = self._load().eval()
            return self._model

    @cached_property
    def fingerprint(self) -> str:
        """Another one whenever a file of the model is replaced, or it is asked for in another precision."""
        return hashlib.sha256(f"{folder_fingerprint(self.folder)} {self.dtype}".encode()).hexdigest()

    @cached_property
    def facts(self) -> Facts:
        """From the cache after the first time."""
        version = importlib.metadata.version("transformers")
        place = cache.home() / "facts" / f"{self.fingerprint[:16]}-{version}"
        try:
            cache.made_once(place, lambda target: _write(target / "facts.json", self._read_facts()._asdict()))
        except SlalomError:  # the cache cannot be written
            return self._read_facts()
        return Facts(**json.loads((place / "facts.json").read_text(encoding="utf-8")))

    def _read_facts(self) -> Facts:
        from transformers import AutoConfig, GenerationConfig

        said = (self.folder / "generation_config.json").is_file()
        generation = GenerationConfig.from_pretrained(self.folder) if said else None
        return Facts.of(AutoConfig.from_pretrained(self.folder), generation)


def known_as(model: PreTrainedModel | SavedModel) -> str:
    """A model's name, if nobody gave it one."""
    return str(model.folder) if isinstance(model, SavedModel) else model.config.name_or_path or type(model).__name__


def is_quantised(folder: Path) -> bool:
    """Whether a model folder's weights are, so that transformers places them."""
    return "quantization_config" in json.loads((folder / "config.json").read_text(encoding="utf-8"))


def read_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """A folder's or hub name's tokenizer; one whose class its folder names, without the class of the model's config."""
    from transformers import AutoTokenizer, PretrainedConfig

    file = Path(source) / "tokenizer_config.json"
    if file.is_file() and "tokenizer_class" in json.loads(file.read_text(encoding="utf-8")):
        return AutoTokenizer.from_pretrained(source, config=PretrainedConfig.from_pretrained(source))
    return AutoTokenizer.from_pretrained(source)


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
