"""GGUF files become model folders, quietly, or one sentence says why not."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from slalom.backbone.gguf_files import convert_gguf
from slalom.errors import SlalomError


def test_a_gguf_file_becomes_a_folder_without_a_word(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    write_gguf(tmp_path / "model.gguf")
    convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
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


def test_a_gguf_file_that_cannot_be_read_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"nothing")
    with pytest.raises(SlalomError, match=r"model\.gguf could not be converted") as error:
        convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert "\n" not in str(error.value)
