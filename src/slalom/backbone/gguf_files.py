"""A GGUF file to an ordinary float32 model folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slalom.backbone.progress import quiet_transformers
from slalom.errors import SlalomError


def convert_gguf(gguf: Path, target: Path) -> None:
    """A GGUF file to an ordinary float32 model folder that loads in a moment.

    In a process of its own: transformers' reader of GGUF draws a bar that only tqdm's environment variable stops, which
    is read once, at import.
    """
    code = "import sys; from slalom.backbone import gguf_files as own; own.rewrite_gguf(*map(own.Path, sys.argv[1:]))"
    quiet = {"TQDM_DISABLE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, str(gguf), str(target)]
    done = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"status {done.returncode}"
        raise SlalomError(f"{gguf.name} could not be converted to a model folder ({reason})")


def rewrite_gguf(gguf: Path, target: Path) -> None:
    """The same in this process, with transformers' own bars."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(**where)
        loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        config = loaded.config
        if hasattr(config, "quantization_config"):  # save_pretrained refuses a model that still says it is quantised
            del config.quantization_config
        with torch.device("meta"):
            plain = AutoModelForCausalLM.from_config(config)
        plain.load_state_dict(loaded.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = loaded.generation_config
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)
