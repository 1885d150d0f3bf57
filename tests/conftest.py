"""Tiny models built from a config, of every shape we promise, and the real default one."""

from __future__ import annotations

import json
import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.normalizers import Lowercase
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from slalom.api import SteerableModel
from slalom.constraints.classifier import Classifier

CORPUS = [
    "the food was good and the soup was warm",
    "the food was bad and the soup was cold",
    "a lovely day by the river with a kayak at sunrise",
    "an awful day in the city with the rain all night",
    "The chicken didn't cross the road; it's 42 years old!",
    "we liked the soup, they hated the rain\nand so on",
]
SHAPES = ("gpt2-tied", "gpt2-untied", "llama-tied", "llama-untied")


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 tokens, as GPT-2 and Llama 3 have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """A BPE with a mark for spaces and a token for each byte, as Llama 2, Mistral and Gemma have."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256))],
        show_progress=False,
    )
    tokenizer.train_from_iterator([word for text in CORPUS for word in text.split(" ")], trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(saved))  # the trainer took the bytes for control tokens
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>", unk_token="<unk>")


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    """An uncased WordPiece, as BERT has."""
    words = sorted({word for text in CORPUS for word in re.findall(r"\w+|[^\w\s]", text.lower())})
    letters = sorted({letter for word in words for letter in word})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters)]
    pieces += [word for word in words if 1 < len(word) < 6]  # longer ones are written in letters
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))  # not trained: that breaks ties at random
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    )


def tiny_lm(shape: str, extra_rows: int = 0, dtype: torch.dtype = torch.float32, positions: int = 64) -> SteerableModel:
    """A random LM of two layers whose logits are far enough apart to have a favourite."""
    torch.manual_seed(0)
    tokenizer = byte_level_tokenizer()
    family, tie = shape.split("-")
    common = {
        "vocab_size": len(tokenizer) + extra_rows,
        "tie_word_embeddings": tie == "tied",
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.3,
    }
    if family == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=positions, **common))
    else:
        config = LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=positions,
            **common,
        )
        model = LlamaForCausalLM(config)
    return SteerableModel(model if dtype == torch.float32 else model.to(dtype), tokenizer, shape)


def tiny_classifier(
    labels: tuple[str, ...] = ("bad", "good"),
) -> tuple[BertForSequenceClassification, PreTrainedTokenizerFast]:
    """A random BERT of two layers, in double precision so that finite differences are exact."""
    torch.manual_seed(1)
    tokenizer = word_piece_tokenizer()
    names = dict(enumerate(labels))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
        id2label=names,
        label2id={name: number for number, name in names.items()},
    )
    return BertForSequenceClassification(config).double().eval(), tokenizer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest come first, so that no process is left with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("real") is None)


@pytest.fixture(scope="session", params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """Both precisions that are somebody's default, whatever this CPU's is."""
    return request.param


@pytest.fixture(scope="session", params=SHAPES)
def lm(request: pytest.FixtureRequest) -> SteerableModel:
    """A tiny LM of every shape."""
    return tiny_lm(request.param)


@pytest.fixture(scope="session")
def llama() -> SteerableModel:
    """A tiny LM of one shape, where the shape does not matter."""
    return tiny_lm("llama-tied")


@pytest.fixture(scope="session")
def good() -> Classifier:
    """A tiny classifier's second label."""
    model, tokenizer = tiny_classifier()
    return Classifier(model, "good", tokenizer)


@pytest.fixture(scope="session")
def default_lm() -> SteerableModel:
    """The real default model on the reference engine."""
    import slalom

    return slalom.load(engine="torch")
