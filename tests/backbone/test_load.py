"""Loading: what cannot be loaded is told with the choices, what is loaded goes where it was asked to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import slalom
from slalom.api import SteerableModel
from slalom.backbone import placement
from slalom.backbone.model import load_parts
from slalom.errors import SlalomError
from tests.conftest import tiny_lm


@pytest.fixture
def folder(llama: SteerableModel, tmp_path: Path) -> str:
    """A saved LM."""
    llama.model.save_pretrained(tmp_path)
    llama.tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def test_the_load_error_offers_language_models_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SlalomError, match="smollm2-135m-instruct, gemma3-270m") as error:
        load_parts(str(tmp_path))
    assert "minilm" not in str(error.value)
    assert "mpnet" not in str(error.value)


def test_a_model_is_loaded_in_the_precision_asked_for(folder: str) -> None:
    assert slalom.load(folder, dtype="bfloat16", engine="torch").dtype == torch.bfloat16
    assert slalom.load(folder, dtype=torch.float16, device="cpu", engine="torch").dtype == torch.float16


def test_a_model_object_moves_only_when_asked_to() -> None:
    lm = tiny_lm("llama-tied")
    assert slalom.load(lm.model, lm.tokenizer).dtype == torch.float32
    assert slalom.load(lm.model, lm.tokenizer, dtype="bfloat16", device="cpu").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"dtype": "float8"}, "unknown dtype 'float8'; choose from float32, bfloat16, float16"),
        ({"device": "gpu"}, "unknown device 'gpu'; give cpu, cuda"),
        ({"device": "cuda:7"}, "there is no device cuda:7 on this machine; choose from cpu"),
        ({"device": "cpu", "device_map": "auto"}, "device and device_map exclude each other"),
    ],
)
def test_a_place_that_cannot_be_had_is_refused(folder: str, settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(SlalomError, match=complaint):
        slalom.load(folder, **settings)  # type: ignore[arg-type]


def test_a_model_with_a_device_map_stays_where_that_puts_it(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", _never)
    monkeypatch.setattr("slalom.backbone.model.best_device", lambda: torch.device("cuda:0"))
    model, _ = load_parts(folder, "float32", device_map={"": "cpu"})
    model.hf_device_map = {"model": "cuda:0", "lm_head": "cuda:1"}  # as accelerate marks what it spreads
    assert placement.place(model, torch.device("cuda:0")) == torch.device("cpu")


def test_a_quantised_model_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.Module, "to", _never)
    for mark in ("hf_quantizer", "is_quantized"):
        lm = tiny_lm("llama-tied")
        setattr(lm.model, mark, True)
        assert placement.place(lm.model, torch.device("cuda:0")) == torch.device("cpu")
        with pytest.raises(SlalomError, match="leave device and dtype out"):
            slalom.load(lm.model, lm.tokenizer, device="cpu")
    configured = tiny_lm("llama-tied")
    configured.model.config.quantization_config = {"bits": 4}
    assert placement.place(configured.model, torch.device("cuda:0")) == torch.device("cpu")


def _never(*args: object, **kwargs: object) -> None:
    raise AssertionError("the model was moved")
