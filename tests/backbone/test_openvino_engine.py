"""The OpenVINO engine fills the seam: the same texts and nearly the same logits as torch, from any position."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import slalom
from slalom.backbone import cache, openvino_conversion, openvino_engine, openvino_pass
from slalom.backbone.engine import TransformersEngine
from slalom.backbone.engines import engine_for, failed_conversions
from slalom.backbone.model import LanguageModel
from slalom.backbone.rollout import FREE, Limits, Resumed, rollout
from slalom.errors import SlalomError
from slalom.frontends.listing import examine
from slalom.types import Tokens
from tests.conftest import tiny_lm
from tests.helpers import push_at

PROMPTS = ["the food was", "a lovely day by the river with", "we"]
ROWS = torch.tensor([0, 1, 2, 1])


@pytest.fixture(scope="module", params=["gpt2-untied", "llama-tied"])
def pair(
    request: pytest.FixtureRequest, dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LanguageModel, ...]:
    """The same tiny model on both engines, in both precisions, converted into a cache of its own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SLALOM_HOME", str(tmp_path_factory.mktemp("home")))
    reference = tiny_lm(request.param, dtype=dtype)
    converted = LanguageModel(reference.model, reference.tokenizer, "tiny", engine="openvino")
    yield reference, converted
    patch.undo()


def test_logits_are_nearly_those_of_torch(pair: tuple[LanguageModel, ...]) -> None:
    prefixes = [lm.read([lm.encode(prompt, 6) for prompt in PROMPTS]).prefix for lm in pair]
    reference, converted = (prefix.logits.log_softmax(-1) for prefix in prefixes)
    assert torch.corrcoef(torch.stack([reference.flatten(), converted.flatten()]))[0, 1] > 0.99
    tokens = torch.tensor([3, 30, 300, 30])
    runs = [lm.engine.start(prefix, ROWS, [0] * 4, 3, None) for lm, prefix in zip(pair, prefixes, strict=True)]
    for position in range(3):
        one, other = (run.read(position, tokens, torch.arange(4)).log_softmax(-1) for run in runs)
        assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1] > 0.99


def test_a_rollout_resumed_at_any_position_equals_one_from_the_start(pair: tuple[LanguageModel, ...]) -> None:
    _, lm = pair
    read = lm.read([lm.encode(prompt, 6) for prompt in PROMPTS])
    places = torch.tensor([3, 1, 5, 2])
    push = push_at(places, 300)
    first = rollout(lm, read, ROWS, Limits(6), top_k=3)
    whole = rollout(lm, read, ROWS, Limits(6), push, top_k=3)
    resumed = rollout(lm, read, ROWS, Limits(6), push, top_k=3, resumed=Resumed(first, places))
    assert resumed.draft.tokens.tolist() == whole.draft.tokens.tolist() != first.draft.tokens.tolist()


def test_log_probs_position_by_position_are_nearly_those_of_one_pass(pair: tuple[LanguageModel, ...]) -> None:
    prompts = pair[0].pad([pair[0].encode(prompt, 6).ids for prompt in PROMPTS])
    tokens = torch.arange(18).view(3, 6)
    with torch.inference_mode():
        one, other = (lm.engine.log_probs(prompts, tokens, torch.tensor([6, 6, 6])) for lm in pair)
    assert one.shape == other.shape == tokens.shape
    assert torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1] > 0.99


def test_shorter_texts_beside_longer_ones_have_the_log_probs_they_have_alone(pair: tuple[LanguageModel, ...]) -> None:
    _, lm = pair
    prompts = lm.pad([lm.encode(prompt, 6).ids for prompt in PROMPTS])
    tokens, lengths = torch.arange(18).view(3, 6), torch.tensor([2, 6, 1])
    with torch.inference_mode():
        together = lm.engine.log_probs(prompts, tokens, lengths)
        for row, end in enumerate(lengths.tolist()):
            own = Tokens(prompts.ids[row : row + 1], prompts.mask[row : row + 1])
            alone = lm.engine.log_probs(own, tokens[row : row + 1, :end], lengths[row : row + 1])
            assert torch.allclose(together[row, :end], alone[0], atol=1e-3)


def test_a_saved_model_is_converted_once_and_then_runs_without_its_weights(
    pair: tuple[LanguageModel, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, _ = pair
    reference.model.save_pretrained(tmp_path)
    reference.tokenizer.save_pretrained(tmp_path)
    first = slalom.load(str(tmp_path), engine="openvino")
    read: list[str] = []
    from_pretrained = AutoModelForCausalLM.from_pretrained

    def spy(source: str, **kwargs: object) -> PreTrainedModel:
        read.append(source)
        return from_pretrained(source, **kwargs)

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", spy)
    again = slalom.load(str(tmp_path), engine="openvino")
    wish = slalom.Keywords(["soup"])
    texts = [lm.steer("the food was", wish, length=6, steps=8, tell=False).texts for lm in (first, again)]
    assert texts[0] == texts[1]
    assert read == []
    assert again.vocabulary.embeddings.shape == reference.vocabulary.embeddings.shape  # asked for now
    assert again.model.training is False
    assert read == [str(tmp_path)]
    stat = (tmp_path / "model.safetensors").stat()
    os.utime(tmp_path / "model.safetensors", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    slalom.load(str(tmp_path), engine="openvino")
    assert read == [str(tmp_path)] * 2  # a replaced file is converted anew


READING = """
import sys, threading, torch
from pathlib import Path
from slalom.backbone.openvino_engine import EngineSettings, OpenVINOEngine
from slalom.types import Tokens

engine, few = OpenVINOEngine(Path(sys.argv[1]), EngineSettings("32", 2)), torch.ones(2, 5, dtype=torch.long)

def read():
    for _ in range(100):
        run = engine.start(engine.prefill(Tokens(few, few)), torch.arange(2), [0, 0], 1, None)
        run.read(0, few[0, :2], torch.arange(2))

threads = [threading.Thread(target=read) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_may_read_at_the_same_time(pair: tuple[LanguageModel, ...]) -> None:
    """In a process of its own: threads that wait for each other inside OpenVINO stop everything."""
    openvino_engine.prepare(pair[0].model)  # where nothing of it is in the cache any more
    folder = cache.home() / "openvino" / openvino_engine._fingerprint(pair[0].model)
    subprocess.run([sys.executable, "-c", READING, str(folder)], check=True, timeout=120)


def test_the_conversion_is_made_once_and_the_model_left_as_it_was(pair: tuple[LanguageModel, ...]) -> None:
    reference, _ = pair
    before = reference.model.config._attn_implementation
    made = openvino_engine.prepare(reference.model).milliseconds
    assert openvino_engine.prepare(reference.model).milliseconds == made  # measured anew, they would differ
    assert reference.model.config._attn_implementation == before != openvino_conversion.ATTENTION


def test_auto_takes_the_engine_that_was_faster(
    pair: tuple[LanguageModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, converted = pair
    for torch_took, expected in ((9.0, "openvino"), (0.1, "torch")):
        prepared = openvino_engine.Prepared(converted.engine, {"torch": torch_took, "openvino": 1.0})
        monkeypatch.setattr(openvino_engine, "prepare", lambda model, again, prepared=prepared: prepared)
        assert engine_for(reference.model, "auto").name == expected


def test_a_conversion_that_failed_is_said_once_remembered_and_tried_again_only_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    model = tiny_lm("llama-tied").model
    tried = []

    def fail(model: object) -> None:
        tried.append(model)
        raise RuntimeError("no such operation")

    monkeypatch.setattr(openvino_conversion, "convert", fail)
    assert isinstance(engine_for(model, "auto"), TransformersEngine)
    assert "no such operation" in " ".join(capsys.readouterr().err.split())
    assert isinstance(engine_for(model, "auto"), TransformersEngine)
    assert capsys.readouterr().err == ""
    assert len(tried) == 1
    assert "no such operation" in failed_conversions()["LlamaForCausalLM"]
    assert "no such operation" in examine()["openvino: LlamaForCausalLM"]
    with pytest.raises(SlalomError, match="no such operation"):
        engine_for(model, "openvino")
    assert len(tried) == 2
    monkeypatch.undo()
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    assert engine_for(model, "openvino").name == "openvino"
    assert failed_conversions() == {}


def test_a_model_with_a_sliding_window_is_refused_or_left_to_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path))
    model = tiny_lm("llama-tied").model
    monkeypatch.setattr(model.config, "sliding_window", 8, raising=False)
    with pytest.raises(SlalomError, match="sliding window"):
        engine_for(model, "openvino")
    assert isinstance(engine_for(model, "auto"), TransformersEngine)


def test_an_unknown_engine_is_refused_in_a_sentence() -> None:
    with pytest.raises(SlalomError, match="unknown engine 'warp'; choose from auto, torch, openvino"):
        engine_for(tiny_lm("llama-tied").model, "warp")  # type: ignore[arg-type]


def test_rows_of_any_start_and_length_get_the_text_they_get_alone(
    pair: tuple[LanguageModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows a request, so that some requests wait, some end early and some have a gap between their rows."""
    _, lm = pair
    monkeypatch.setattr(openvino_pass, "TOGETHER", 2)
    read = lm.read([lm.encode(prompt, 20) for prompt in PROMPTS])
    rows = torch.tensor([0, 1, 2, 1, 0])
    limits = [Limits(length) for length in (3, 20, 12, 5, 7)]
    first = rollout(lm, read, rows, limits, top_k=3)
    forced = torch.full((5, 20), FREE)
    starts = torch.tensor([1, 18, 2, 4, 0])
    forced[torch.arange(5), starts] = 300
    together = rollout(lm, read, rows, limits, None, 3, None, Resumed(first, starts), None, forced)
    again = rollout(lm, read, rows, limits, None, 3, None, Resumed(together, starts), None, forced)
    assert again.draft.tokens.tolist() == together.draft.tokens.tolist() != first.draft.tokens.tolist()
    for row in range(5):
        n = limits[row].length
        alone = rollout(lm, read, rows[[row]], [limits[row]], None, 3, None, None, None, None)
        assert alone.draft.tokens[0].tolist() == first.draft.tokens[row, :n].tolist()
        moved = Resumed(alone, starts[[row]])
        alone = rollout(lm, read, rows[[row]], [limits[row]], None, 3, None, moved, None, forced[[row], :n])
        assert alone.draft.tokens[0].tolist() == together.draft.tokens[row, :n].tolist()


def tokens_of(rows: list[list[int]]) -> Tokens:
    """Prompts, padded on the left."""
    widest = max(map(len, rows))
    ids = [[0] * (widest - len(row)) + row for row in rows]
    return Tokens(torch.tensor(ids), torch.tensor([[0] * (widest - len(row)) + [1] * len(row) for row in rows]))


def test_prompts_that_begin_alike_share_blocks_and_get_the_logits_they_get_alone(
    pair: tuple[LanguageModel, ...],
) -> None:
    engine = pair[1].engine
    size = engine.graph.pool.size
    begin = [7 + i % 90 for i in range(size)]
    rows = [[*begin, 5, 6], [*begin, 8], begin[:5], [*begin, 5, 6, 9]]
    with torch.inference_mode():
        together = engine.prefill(tokens_of(rows))
        alone = [engine.prefill(tokens_of([row])) for row in rows]
        engine.graph.known.clear()
        anew = [engine.prefill(tokens_of([row])) for row in rows]
    firsts = {tables[0].number for tables in (together.memory.tables[row] for row in (0, 1, 3))}
    assert len(firsts) == 1
    assert together.memory.tables[2][0].number not in firsts
    for row, one, other in zip(range(4), alone, anew, strict=True):
        assert torch.allclose(together.logits[row], one.logits[0], atol=1e-4)
        assert torch.allclose(together.logits[row], other.logits[0], atol=1e-4)


def test_blocks_are_free_again_when_nobody_holds_them_and_grow_with_what_they_hold(
    pair: tuple[LanguageModel, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = pair[1].engine.graph
    graph.known.clear()
    free = len(graph.pool._free)
    with torch.inference_mode():
        prefix = pair[1].engine.prefill(tokens_of([[5, 6, 7]]))
        assert len(graph.pool._free) == free - 1
        run = pair[1].engine.start(prefix, torch.zeros(1).long(), [0], 4, None)
        before = run.read(0, torch.tensor([8]), torch.tensor([0]))
        held = [graph.pool.take() for _ in range(len(graph.pool._free) + 1)]  # one more than there are
        again = pair[1].engine.start(prefix, torch.zeros(1).long(), [0], 4, None)
        assert again.read(0, torch.tensor([8]), torch.tensor([0])).equal(before)
    del prefix, run, again
    size = len(graph.pool._free) + len(held)
    del held
    assert len(graph.pool._free) == size
    assert len(set(graph.pool._free)) == size  # none twice


def test_a_rollout_leaves_what_it_began_from_as_it_was(pair: tuple[LanguageModel, ...]) -> None:
    _, lm = pair
    read = lm.read([lm.encode(prompt, 12) for prompt in PROMPTS])
    first = rollout(lm, read, ROWS, Limits(12), top_k=3)
    forced = torch.full((4, 12), FREE)
    forced[:, 4] = 300
    moved = Resumed(first, torch.full((4,), 4))
    once, twice = (rollout(lm, read, ROWS, Limits(12), None, 3, None, moved, None, forced) for _ in range(2))
    assert once.draft.tokens.tolist() == twice.draft.tokens.tolist() != first.draft.tokens.tolist()
    assert once.log_probs.equal(twice.log_probs)
