"""LM-Steer against its formula: what the head reads, which way, how strongly, and what is left as it was."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from slalom.api import SteerableModel
from slalom.backbone.steering import Steers, steering
from slalom.constraints import Avoid, Keywords
from slalom.constraints.classifier import Classifier
from slalom.decoding import lm_steer
from slalom.decoding.lm_steer import LMSteer, load_steer
from slalom.errors import SlalomError
from tests.conftest import tiny_classifier, tiny_lm
from tests.helpers import decode, problem_of, steer_folder, unsteered

PROMPTS = ["the food was", "a lovely day by the river with"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return steer_folder(tmp_path / "steer")


def logits_of(lm: SteerableModel, text: str) -> torch.Tensor:
    """The logits after every token of a text: [m, V]."""
    with torch.inference_mode():
        return lm.model(input_ids=torch.tensor([lm.tokenizer(text)["input_ids"]])).logits[0]


def test_the_head_reads_the_changed_hidden_state(lm: SteerableModel, folder: Path) -> None:
    steers, _ = load_steer(folder)
    ids = torch.tensor([lm.tokenizer(PROMPTS[0])["input_ids"]])
    values = torch.tensor([[-2.0, 1.0]])
    with torch.inference_mode():
        hidden = lm.model.base_model(input_ids=ids).last_hidden_state[0]  # [m, d]
        change = torch.zeros_like(hidden)
        for s in range(2):
            change += 0.1 * values[0, s] * hidden @ steers.down[s] @ steers.up[s].T
        expected = lm.model.get_output_embeddings()(hidden + change)
    with steering(lm.model, lambda states: steers.change(states, values)):
        torch.testing.assert_close(logits_of(lm, PROMPTS[0]), expected)
    assert not torch.allclose(logits_of(lm, PROMPTS[0]), expected)


def test_rows_may_have_values_of_their_own(folder: Path) -> None:
    steers, _ = load_steer(folder)
    hidden, values = torch.randn(3, 4, 16), torch.tensor([[1.0, 1.0], [-5.0, 1.0], [0.0, 0.0]])
    together = steers.change(hidden, values)
    for row in range(3):
        torch.testing.assert_close(together[row], steers.change(hidden[row, None], values[row, None])[0])
    assert together[2].abs().max() == 0


def test_the_hook_is_gone_after_an_error(llama: SteerableModel) -> None:
    before = logits_of(llama, "the food")
    with pytest.raises(ZeroDivisionError), steering(llama.model, lambda hidden: hidden / (1 // 0)):
        logits_of(llama, "the food")
    assert torch.equal(logits_of(llama, "the food"), before)


def test_strength_zero_is_the_lm_itself(lm: SteerableModel, good: Classifier, folder: Path) -> None:
    ends = decode(problem_of(lm, PROMPTS, good), LMSteer(strength=0.0, steer=str(folder)), [0, 1], 2, choice="latest")
    expected = unsteered(lm, PROMPTS).draft
    for row, end in enumerate(ends):
        assert end.best.draft.texts == [expected.texts[row]]
    knobs = {"steer": str(folder)}
    drawn = lm.steer(PROMPTS, good, sampler="lm-steer", strength=0, length=8, knobs=knobs, compare=True)
    assert drawn.texts == [row.unsteered for row in drawn.rows]
    assert drawn.texts != expected.texts


def test_the_first_token_is_steered_as_well(lm: SteerableModel, good: Classifier, folder: Path) -> None:
    sampler, problem = LMSteer(strength=5.0, style=0.0, steer=str(folder)), problem_of(lm, PROMPTS, good)
    state = sampler.step(problem, sampler.init(problem, None), None)  # type: ignore[arg-type]
    steers, _ = load_steer(folder)
    for row, prompt in enumerate(PROMPTS):
        with steering(lm.model, lambda hidden: steers.change(hidden, torch.tensor([[5.0, 0.0]]))):
            logits = logits_of(lm, prompt)[-1].masked_fill(lm.vocabulary.banned_fixed, -torch.inf)
        assert state.latest.tokens[row, 0] == logits.argmax()


def test_a_label_and_its_opposite_are_steered_opposite_ways(llama: SteerableModel, folder: Path) -> None:
    model, tokenizer = tiny_classifier()
    changes = []
    for label in ("good", "bad"):
        problem = problem_of(llama, ["we"], Classifier(model, label, tokenizer))
        changes.append(LMSteer(style=0.0, steer=str(folder))._change(problem)(torch.ones(1, 1, 16)))
    torch.testing.assert_close(changes[0], -changes[1])
    problem = problem_of(llama, ["we"], Classifier(model, "bad", tokenizer))
    named = LMSteer(style=0.0, steer=str(folder), label="good")._change(problem)(torch.ones(1, 1, 16))
    torch.testing.assert_close(named, changes[0])


def test_a_sum_is_steered_by_the_weighted_sum_of_its_steers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Taste(Classifier):
        steer_name = "taste"

    class Warmth(Classifier):
        steer_name = "warmth"

    lm = tiny_lm("gpt2-untied")
    model, tokenizer = tiny_classifier()
    taste, warmth = Taste(model, "good", tokenizer, "taste"), Warmth(model, "bad", tokenizer, "warmth")
    shipped = {(name, lm.name): name for name in ("taste", "warmth")}
    monkeypatch.setattr(lm_steer, "SHIPPED_STEERS", shipped)
    monkeypatch.setattr(lm_steer, "SHIPPED", tmp_path)
    for seed, name in enumerate(("taste", "warmth")):
        steer_folder(tmp_path / name, seed=seed)
    hidden = torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(0))

    def change(wish) -> torch.Tensor:  # type: ignore[no-untyped-def]
        return LMSteer(strength=3.0, style=0.0)._change(problem_of(lm, ["we"], wish))(hidden)

    torch.testing.assert_close(change(taste + 0.5 * warmth), change(taste) + 0.5 * change(warmth))
    torch.testing.assert_close(change(0.5 * warmth + taste), change(taste + 0.5 * warmth))
    torch.testing.assert_close(change(taste + Avoid(["soup"])), change(taste))
    with pytest.raises(SlalomError, match=r"no steer is shipped for keywords:any\(soup\)"):
        change(taste + Keywords(["soup"]))


def test_the_lm_gets_no_gradient_and_tells_its_own_perplexity(
    lm: SteerableModel, good: Classifier, folder: Path
) -> None:
    (end,) = decode(problem_of(lm, ["the food was"], good), LMSteer(steer=str(folder)), [0], 1, choice="latest")
    assert all(parameter.grad is None for parameter in lm.model.parameters())
    torch.testing.assert_close(end.best.draft.log_probs, lm.log_probs(end.best.draft))
    assert end.best.draft.texts != unsteered(lm, ["the food was"]).draft.texts


def test_each_step_is_another_sample_and_the_last_one_stands(
    llama: SteerableModel, good: Classifier, folder: Path
) -> None:
    texts: list[str] = []
    out = llama.steer(
        "we",
        good,
        sampler="lm-steer",
        length=8,
        steps=5,
        temperature=1.0,
        knobs={"steer": str(folder)},
        callbacks=(lambda rows: texts.extend(row.seen.draft.texts[0] for row in rows),),
    )
    assert len(set(texts)) == 5
    assert out.texts == texts[-1:]


def test_another_engine_is_left_for_torch_and_kept(llama: SteerableModel, good: Classifier, folder: Path) -> None:
    class Other:
        name = "other"
        prefill, start = llama.engine.prefill, llama.engine.start
        side_by_side = llama.engine.side_by_side

    lm = copy.copy(llama)
    lm.engine = Other()  # type: ignore[assignment]
    mine = lm.steer("we", good, sampler="lm-steer", length=8, knobs={"steer": str(folder)})
    assert mine.texts == llama.steer("we", good, sampler="lm-steer", length=8, knobs={"steer": str(folder)}).texts
    assert lm.engine.name == "other"


def test_what_cannot_be_steered_is_told_what_to_do(llama: SteerableModel, good: Classifier, tmp_path: Path) -> None:
    def told(wish, **knobs: str) -> str:  # type: ignore[no-untyped-def]
        with pytest.raises(SlalomError) as error:
            llama.steer("we", wish, sampler="lm-steer", length=4, knobs=knobs)
        return str(error.value)

    folder = str(steer_folder(tmp_path / "steer"))
    assert "make one with slalom train steer DATA --lm llama-tied --out FOLDER" in told(good)
    assert "holds no readable steer; make one with slalom train steer" in told(good, steer=str(tmp_path / "none"))
    assert "set its knob label to bad or good" in told(Keywords(["soup"]), steer=folder)
    assert "has no label 'fine'" in told(good, steer=folder, label="fine")
    wide = str(steer_folder(tmp_path / "wide", width=24))
    assert "of 24 numbers, but those of llama-tied have 16" in told(good, steer=wide)


def test_the_papers_preset_is_the_originals_and_ours_draws_more_carefully(good: Classifier) -> None:
    own, paper = (LMSteer.presets(good)[name] for name in ("default", "paper"))
    assert (paper.steps, paper.choice, paper.temperature, paper.top_p) == (1, "latest", 1.0, 0.9)
    assert own == replace(paper, temperature=0.3)


def test_any_wish_of_the_kind_detoxification_draws_from_the_whole_distribution(
    good: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LMSteer.presets(good + good)["default"].top_p == 0.9
    monkeypatch.setattr(good, "kind", "detoxification")
    assert LMSteer.presets(good + good)["default"].top_p == 1.0
    assert LMSteer.presets(good + good)["default"].temperature == 1.0
    assert LMSteer.presets(good + Keywords(["soup"]))["default"].top_p == 0.9


def test_the_steers_change_is_in_the_matrices_precision_whatever_the_lms() -> None:
    steers = Steers(torch.randn(2, 16, 3), torch.randn(2, 16, 3), 0.1)
    assert steers.change(torch.randn(1, 2, 16).bfloat16(), torch.ones(1, 2)).dtype == torch.float32


def test_every_shipped_steer_says_what_made_it_and_knows_its_constraints_labels() -> None:
    assert {path.name for path in lm_steer.SHIPPED.iterdir()} == set(lm_steer.SHIPPED_STEERS.values())
    for (kind, model), name in lm_steer.SHIPPED_STEERS.items():
        card = json.loads((lm_steer.SHIPPED / name / "card.json").read_text(encoding="utf-8"))
        assert card["lm"] == model
        assert card["command"].startswith("slalom train steer")
        for label in ("positive", "negative") if kind == "sentiment" else ("clean", "toxic"):
            losses = card["next_token_loss"][f"{label} texts"]
            mine = losses.pop(f"steered to {label}")
            assert mine < losses["unsteered"]
            assert mine < min(loss for how, loss in losses.items() if how.startswith("steered to"))
