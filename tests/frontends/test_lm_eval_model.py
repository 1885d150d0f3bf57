"""The lm-evaluation-harness's model slalom; where the harness is not installed, with what it asks of a model alone."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from slalom.errors import SlalomError
from slalom.frontends.cli import app
from tests.conftest import tiny_lm

REGISTERED: dict[str, Any] = {}


class LM:
    """The part of the harness's class that models are made by."""

    @classmethod
    def create_from_arg_obj(cls, arguments: dict[str, Any], config: dict[str, Any]) -> LM:
        """A model of what was typed, and what the harness adds."""
        return cls(**arguments, **config)


def register_model(name: str) -> Callable[[type], type]:
    """Notes a model's class, as the harness does."""
    return lambda kind: REGISTERED.setdefault(name, kind)


@pytest.fixture(scope="module")
def harness() -> Iterator[None]:
    """The harness, or what the adapter imports of it."""
    if importlib.util.find_spec("lm_eval"):
        yield
        return
    api = {"instance": {"Instance": object}, "model": {"LM": LM}, "registry": {"register_model": register_model}}
    names = {"lm_eval": {}, "lm_eval.api": {}} | {f"lm_eval.api.{name}": parts for name, parts in api.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, parts in names.items():
            module = ModuleType(name)
            vars(module).update(parts)
            patch.setitem(sys.modules, name, module)
        patch.delitem(sys.modules, "slalom.frontends.lm_eval_model", raising=False)
        yield
        sys.modules.pop("slalom.frontends.lm_eval_model", None)


@pytest.fixture(scope="module")
def model(harness: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny LM as the harness has it."""
    from slalom.frontends.lm_eval_model import SlalomLM

    folder = tmp_path_factory.mktemp("lm")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    arguments = {"model": str(folder), "keywords": "soup", "steps": 2, "engine": "torch"}
    return folder, SlalomLM.create_from_arg_obj(arguments, {"batch_size": 1, "device": "cuda:0"})


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
