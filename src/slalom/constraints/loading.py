"""A name or folder to a classifier and its tokenizer: saved models, hub names, and our own small adapters."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from slalom.backbone import cache, weights
from slalom.backbone.progress import quiet_transformers
from slalom.backbone.saved import SavedEncoder, folder_fingerprint, forget_tokenizer_class, read_tokenizer
from slalom.backbone.vocabulary import shareable
from slalom.errors import SlalomError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SHIPPED = Path(__file__).parent / "shipped"
MERGED = b"2"  # the form of merged adapters in the cache


def located(source: str) -> Path:
    """A classifier's folder: the shipped one of that name, if there is one, or the path itself."""
    shipped = SHIPPED / source
    return shipped if (shipped / "card.json").is_file() else Path(source)


@lru_cache(maxsize=8)
def open_classifier(source: str) -> tuple[PreTrainedModel | SavedEncoder, PreTrainedTokenizerBase]:
    """`read_classifier`, cached: callers share one frozen model.

    An adapter is merged into its encoder but once, and the two stay on disk until their weights are asked for.
    """
    if not (located(source) / "adapter_config.json").is_file():
        return read_classifier(source)
    try:
        folder = _merged(located(source))
    except SlalomError:  # the cache cannot be written; what is wrong with the adapter is said here
        return read_classifier(source)
    saved = SavedEncoder(folder, torch.float32, lambda: read_classifier(str(folder))[0])
    with quiet_transformers():
        return saved, shareable(read_tokenizer(str(folder)))


def load_classifier(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The same, with its weights."""
    opened, tokenizer = open_classifier(source)
    return opened.model if isinstance(opened, SavedEncoder) else opened, tokenizer


def _merged(folder: Path) -> Path:
    """An adapter and its encoder as one saved classifier in the cache folder, which loads in a fraction of the time."""
    body = weights.ensure(_body(folder))
    contents = [file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()]
    own = hashlib.sha256(b"".join([MERGED, folder_fingerprint(body).encode(), *contents])).hexdigest()[:16]

    def save(target: Path) -> None:
        with quiet_transformers():
            model, tokenizer = read_classifier(str(folder))
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
            if tokenizer.is_fast:
                forget_tokenizer_class(target, tokenizer)

    return cache.made_once(cache.home() / "classifiers" / f"{folder.name}-{own}", save)


def _body(folder: Path) -> str:
    """The encoder that an adapter was trained on."""
    return json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]


def read_classifier(source: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A sequence classifier ready to score, in float32 and frozen: a shipped one, a folder or a hub name."""
    from transformers import AutoModelForSequenceClassification

    folder = located(source)
    weights.check_path(source)
    try:
        with quiet_transformers():
            if (folder / "adapter_config.json").is_file():
                return _load_adapter(folder)
            if folder.exists() and not (folder / "config.json").is_file():
                raise SlalomError(
                    f"{source!r} holds no classifier: there is neither a config.json (saved by save_pretrained) "
                    "nor an adapter_config.json (one made by slalom train classifier)"
                )
            model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32)
            return model.eval().requires_grad_(False), shareable(read_tokenizer(source))
    except SlalomError:
        raise
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise SlalomError(
            f"no classifier could be loaded from {source!r} ({reason}); give a folder saved by save_pretrained, "
            "one made by slalom train classifier, or a hub name this machine can reach"
        ) from error


@lru_cache(maxsize=2)
def open_encoder(name: str) -> tuple[SavedEncoder, PreTrainedTokenizerBase]:
    """An embedded encoder, on disk until its weights are asked for, and its tokenizer."""
    folder = weights.ensure(name)
    with quiet_transformers():
        tokenizer = shareable(read_tokenizer(str(folder)))
    return SavedEncoder(folder, torch.float32, lambda: _read_encoder(folder)), tokenizer


def _read_encoder(folder: Path) -> PreTrainedModel:
    """In float32 and frozen."""
    from transformers import AutoModel

    with quiet_transformers():
        return AutoModel.from_pretrained(folder, dtype=torch.float32).requires_grad_(False)


def _load_adapter(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An adapter merged into its encoder."""
    from peft import PeftModel
    from transformers import AutoModelForSequenceClassification

    body = weights.ensure(_body(folder))
    names = dict(enumerate(card(folder)["labels"]))
    model = AutoModelForSequenceClassification.from_pretrained(
        body,
        num_labels=len(names),
        id2label=names,
        label2id={name: i for i, name in names.items()},
        dtype=torch.float32,
    )
    merged: Any = PeftModel.from_pretrained(model, folder).merge_and_unload()
    return merged.eval().requires_grad_(False), shareable(read_tokenizer(str(body)))


def load_projection(folder: Path) -> torch.Tensor:
    """The map from an LM's table to the encoder's, [d_lm, d], of a classifier in the paper's construction."""
    return load_file(folder / "projection.safetensors")["projection"].float()


def card(folder: Path) -> dict[str, Any]:
    """What is known of a classifier we trained: labels, data, command, measured accuracy."""
    try:
        return json.loads((folder / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SlalomError(
            f"{folder} has no readable card.json; make the classifier with slalom train classifier"
        ) from error
