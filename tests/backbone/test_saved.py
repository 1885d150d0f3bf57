"""A model left on disk: known by its files, its weights read once and only when they are asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BertTokenizer, PreTrainedModel

from slalom.api import SteerableModel
from slalom.backbone import saved
from slalom.backbone.saved import (
    ANY_TOKENIZER,
    EncoderFacts,
    Facts,
    SavedEncoder,
    SavedModel,
    folder_fingerprint,
    forget_tokenizer_class,
    read_tokenizer,
)
from tests.conftest import tiny_classifier


@pytest.fixture
def folder(llama: SteerableModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved LM, and a cache of its own."""
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "home"))
    llama.model.save_pretrained(tmp_path / "lm")
    llama.tokenizer.save_pretrained(tmp_path / "lm")
    return tmp_path / "lm"


def never() -> PreTrainedModel:
    raise AssertionError("the weights were read")


def test_a_changed_weight_file_has_another_fingerprint_even_at_the_same_size_and_time(folder: Path) -> None:
    before, file = folder_fingerprint(folder), folder / "model.safetensors"
    assert folder_fingerprint(folder) == before
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert folder_fingerprint(folder) != before
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert folder_fingerprint(folder) != before


def test_another_place_or_precision_is_another_model(folder: Path) -> None:
    wide, narrow = (SavedModel(folder, dtype, never).fingerprint for dtype in (torch.float32, torch.bfloat16))
    assert wide != narrow
    moved = folder.rename(folder.with_name("moved"))
    assert SavedModel(moved, torch.float32, never).fingerprint != wide


def test_facts_are_the_configs_and_read_by_its_class_once(
    folder: Path, llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = SavedModel(folder, torch.float32, never).facts
    assert facts == Facts.of(llama.model.config, llama.model.generation_config)
    assert facts.vocabulary == len(llama.model.get_input_embeddings().weight)

    def refuse(*args: object) -> None:
        raise AssertionError("the config's class was imported")

    monkeypatch.setattr(AutoConfig, "from_pretrained", refuse)
    assert SavedModel(folder, torch.float32, never).facts == facts
    (folder / "config.json").write_text((folder / "config.json").read_text().replace("64", "65"))
    with pytest.raises(AssertionError, match="class was imported"):
        SavedModel(folder, torch.float32, never).facts  # noqa: B018


def test_facts_are_read_afresh_where_the_cache_cannot_be_written(
    folder: Path, llama: SteerableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").write_text("")
    monkeypatch.setenv("SLALOM_HOME", str(folder / "file" / "home"))
    assert SavedModel(folder, torch.float32, never).facts.vocabulary == llama.vocabulary.size


def test_weights_are_read_once_whichever_thread_asks(folder: Path, llama: SteerableModel) -> None:
    read: list[PreTrainedModel] = []

    def load() -> PreTrainedModel:
        read.append(llama.model)
        return llama.model

    model = SavedModel(folder, torch.float32, load)
    assert read == []
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: model.model, range(8)))
    assert len(read) == 1
    assert all(one is llama.model for one in found)


def test_an_encoders_labels_and_window_are_known_without_its_weights_after_the_first_time(folder: Path) -> None:
    model, _ = tiny_classifier(("bad", "good"))
    facts = SavedEncoder(folder, torch.float32, lambda: model).facts
    assert facts == EncoderFacts.of(model)
    assert facts.labels == {0: "bad", 1: "good"}
    assert SavedEncoder(folder, torch.float32, never).facts == facts


def test_an_encoder_on_disk_is_read_for_any_device_but_the_cpu(folder: Path) -> None:
    encoder = SavedEncoder(folder, torch.float32, never)
    assert encoder.place(torch.device("cpu")) == torch.device("cpu")
    with pytest.raises(AssertionError, match="weights were read"):
        encoder.place(torch.device("meta"))


def test_weights_first_read_where_no_gradient_is_wanted_have_one_later(folder: Path) -> None:
    saved_model = SavedModel(folder, torch.float32, lambda: AutoModelForCausalLM.from_pretrained(folder))
    with torch.inference_mode():
        model = saved_model.model
    loss = model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().sum() > 0


def test_a_tokenizer_whose_class_is_forgotten_reads_as_before(tmp_path: Path) -> None:
    _, tokenizer = tiny_classifier()
    bert = BertTokenizer(vocab=tokenizer.get_vocab())
    bert.save_pretrained(tmp_path)
    forget_tokenizer_class(tmp_path, bert)
    again = read_tokenizer(str(tmp_path))
    texts = ["The FOOD [SEP] wasn't good", "a"]
    assert type(again).__name__ == ANY_TOKENIZER
    assert again(texts) == bert(texts)
    assert "token_type_ids" in again(texts)
    assert again.special_tokens_map == bert.special_tokens_map


def test_a_folders_tokenizer_is_the_one_transformers_would_take(folder: Path) -> None:
    ours, theirs = read_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    text = "The chicken didn't <eos> cross"
    assert type(ours) is type(theirs)
    assert ours(text) == theirs(text)
    assert ours.special_tokens_map == theirs.special_tokens_map


def test_a_language_model_is_imported_without_transformers_models() -> None:
    """They take seconds to import, and an engine may need none."""
    code = "import sys, slalom.backbone.model; print('transformers.modeling_utils' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_a_quantised_folder_is_known_by_its_config(folder: Path) -> None:
    assert not saved.is_quantised(folder)
    (folder / "config.json").write_text('{"quantization_config": {"bits": 4}}')
    assert saved.is_quantised(folder)
