"""The lm-evaluation-harness's model slalom; skipped where the harness is not installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.frontends.cli import app
from tests.conftest import tiny_lm

pytest.importorskip("lm_eval", reason="pip install 'slalom[lm-eval]'")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny LM as the harness has it."""
    from slalom.frontends.lm_eval_model import SlalomLM

    folder = tmp_path_factory.mktemp("lm")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    arguments = f"model={folder},keywords=soup,steps=2,engine=torch"
    return folder, SlalomLM.create_from_arg_string(arguments, {"batch_size": 1, "device": "cuda:0"})


def asked(context: str, **kwargs: Any) -> Any:
    return SimpleNamespace(args=(context, kwargs))


def test_a_task_that_generates_gets_the_texts_of_slalom_generate_in_its_order(model: tuple[Path, Any]) -> None:
    import json

    from typer.testing import CliRunner

    folder, lm = model
    found = lm.generate_until(
        [asked(one, until=["\n\n"], max_gen_toks=5, do_sample=False) for one in ("we", "the food")]
    )
    words = ["generate", "we", "the food", "--model", str(folder), "--keywords", "soup", "--steps", "2"]
    words += ["--engine", "torch", "--length", "5", "--free", "--stop", "\n\n", "--json"]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    assert found == [json.loads(line)["text"] for line in lines]


def test_what_cannot_be_applied_is_refused_by_name(model: tuple[Path, Any]) -> None:
    _, lm = model
    with pytest.raises(SlalomError, match="num_beams"):
        lm.generate_until([asked("we", until=[], num_beams=4)])
    with pytest.raises(SlalomError, match="generate_until"):
        lm.loglikelihood([])
