"""Studies: what they ask of the samplers, and that any sampler will do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from slalom.constraints import Classifier, Constraint, Keywords
from slalom.decoding.dab import DAB
from slalom.decoding.presets import preset_for
from slalom.decoding.sampler import Preset
from slalom.errors import SlalomError
from slalom.evaluation import report, store, studies, tasks
from slalom.evaluation.cells import Cell
from slalom.evaluation.document import markdown
from slalom.evaluation.run_evaluation import read_several, run_evaluation
from slalom.evaluation.run_folder import RunSettings, read_run
from slalom.evaluation.studies import SIZES, StudySize, ablation_cells, cost, explore
from tests.conftest import tiny_classifier, tiny_lm
from tests.evaluation import tiny

SMALL = StudySize(2, 3, 4)


def settings_of(sampler: str, wish: Constraint, steps: int = 4) -> Preset:
    return replace(preset_for("default", wish, "tiny", sampler=sampler), steps=steps, stop=None)


@pytest.mark.parametrize("sampler", ["dab", "drawn"])
def test_exploration_counts_hops_tokens_and_perplexity_of_every_step(sampler: str) -> None:
    lm, wish = tiny_lm("llama-tied"), Keywords(["soup"])
    found = explore(lm, wish, "the food", settings_of(sampler, wish), SMALL)
    assert len(found["hops"]) == 3
    assert len(found["perplexity"]) == len(found["score"]) == 4
    assert all(0 <= hops <= studies.LENGTH for hops in found["hops"])
    assert 1 < found["unique"] <= 4
    assert all(value > 1 for value in found["perplexity"])


def test_exploration_takes_the_steps_that_all_rows_have() -> None:
    """With seed 0 climb's first step writes one draft, with other seeds four: of 10 drafts it makes a step more."""
    lm, wish = tiny_lm("llama-tied"), Keywords(["soup"])
    found = explore(lm, wish, "the food", settings_of("climb", wish, steps=10), SMALL)
    assert len(found["perplexity"]) == len(found["score"]) == len(found["hops"]) + 1 == 3


def test_a_sampler_that_never_moves_makes_no_hops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny.Drawn, "step", lambda self, problem, state, rng: state)
    lm, wish = tiny_lm("llama-tied"), Keywords(["soup"])
    found = explore(lm, wish, "the food", settings_of("drawn", wish), SMALL)
    assert found["hops"] == [0.0, 0.0, 0.0]
    assert found["unique"] == 1.0


def test_a_studys_rows_have_the_seeds_from_the_runs_on(small: Path) -> None:
    task, lm = tasks.load_task(str(small / "soup.toml")), tiny_lm("llama-tied")
    for seed in (0, 5):
        settings = RunSettings((Cell("soup", "drawn"),), "quick", "tiny", "torch", seed, study="exploration")
        run_evaluation(small / f"seed-{seed}", settings, [task], lambda: lm, {}, lambda progress: None)
    wish = tasks.constraint_of(task.wishes[0].parts)
    first, other = (store.read(small / f"seed-{seed}" / "units.jsonl")[0] for seed in (0, 5))
    expected = explore(lm, wish, "the food", settings_of("drawn", wish), SMALL, seed=5)
    assert {name: other[name] for name in expected} == expected
    assert {name: first[name] for name in expected} == explore(
        lm, wish, "the food", settings_of("drawn", wish), SMALL, seed=0
    )
    assert first["perplexity"] != other["perplexity"]


def test_cost_is_length_times_steps_over_time_and_counts_backward_operations() -> None:
    lm = tiny_lm("llama-tied")
    model, tokenizer = tiny_classifier()
    wish = Classifier(model.float(), "good", tokenizer)
    found = cost(lm, wish, "the food", settings_of("dab", wish), SMALL)
    assert found["steps"] == 4
    assert found["tokens_per_second"] == pytest.approx(20 * 4 / found["seconds"], rel=0.01)
    assert found["backward"]["AddmmBackward0"]["calls"] > 0
    assert all(name.split("Backward")[1].isdigit() for name in found["backward"])


def test_a_sampler_without_gradients_has_no_backward_operations() -> None:
    lm, wish = tiny_lm("llama-tied"), Keywords(["soup"])
    assert cost(lm, wish, "the food", settings_of("drawn", wish), SMALL)["backward"] == {}


def test_the_ablation_moves_one_knob_at_a_time_around_the_samplers_own() -> None:
    cells = ablation_cells("dab", "paper", "tiny")
    assert cells[0] == Cell("sentiment", "dab", "paper")
    assert all(len(cell.knobs) == 1 for cell in cells[1:])
    assert {cell.knobs[0][0] for cell in cells[1:]} == {"weight", "tau", "top_k"}
    assert all(cell.knobs != (("top_k", 250),) for cell in cells)  # that is the sampler as it is
    assert len(set(cells)) == len(cells)
    with pytest.raises(SlalomError, match="the sampler drawn has no knob weight"):
        ablation_cells("drawn", "default", "tiny")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The studies at a tiny size on a tiny task."""
    tiny.task_in(tmp_path)
    monkeypatch.setitem(SIZES, "quick", SMALL)
    monkeypatch.setattr(studies, "TASK", str(tmp_path / "soup.toml"))
    monkeypatch.setattr(studies, "LENGTH", 6)
    return tmp_path


@pytest.mark.parametrize("study", ["exploration", "efficiency"])
def test_a_study_measures_every_sampler_on_every_prompt_and_goes_on_where_it_was(small: Path, study: str) -> None:
    task = tasks.load_task(str(small / "soup.toml"))
    cells = (Cell("soup", "drawn"), Cell("soup", "drawn", "hot"))
    settings = RunSettings(cells, "quick", "tiny", "torch", study=study)

    def run() -> None:
        run_evaluation(small / "out", settings, [task], lambda: tiny_lm("llama-tied"), {}, lambda progress: None)

    run()
    whole = store.read(small / "out" / "units.jsonl")
    assert [(unit["cell"], unit["prompt"]) for unit in whole] == [
        (cell.id, prompt) for cell in cells for prompt in ("the food", "we")
    ]
    store.rewrite(small / "out" / "units.jsonl", whole[1:3])
    run()
    again = store.read(small / "out" / "units.jsonl")
    assert again[1:3] == whole[1:3]
    assert [unit["cell"] for unit in again] == [unit["cell"] for unit in whole]
    text = (small / "out" / "report.md").read_text()
    assert {"exploration": "hops a step", "efficiency": "n·s/t"}[study] in text
    assert re.search(r"\| drawn:hot.* \| \d.*<br>n 2 \|", text)


def test_the_ablation_is_reported_over_each_knob(small: Path) -> None:
    task = tasks.load_task(str(small / "soup.toml"))
    plain = Cell("soup", "dab")
    knobs = [("weight", 3.0), ("tau", 0.3), ("top_k", 50)]
    cells = (plain, *(plain._replace(knobs=(one,)) for one in knobs))
    shorter = task.model_copy(update={"prompts": ["we"], "records": task.records[:1]})
    settings = RunSettings(cells, "quick", "tiny", "torch", study="ablation")
    run_evaluation(
        small / "out", settings, [shorter], lambda: tiny_lm("llama-tied"), tiny.judges(), lambda progress: None
    )
    text = (small / "out" / "report.md").read_text()
    for label in ("bias weight w", "proposal temperature τ", "top-k"):
        assert f"| {label} | Success ↑ | PPL ↓ |" in text
    assert re.search(rf"\| {DAB().weight:g} \| \d\S*( ± \S+)?<br>n \d+ \| \d.*<br>n \d+ \|", text)
    weights = [line.split(" | ")[0] for line in text.partition("bias weight w")[2].splitlines()[2:4]]
    assert weights == [f"| {DAB().weight:g}", "| 3"]
    assert (small / "out" / "figures" / "ablation-perplexity.svg").exists()
    assert read_run(small / "out").settings.cells == cells


def test_the_ablation_is_reported_beside_other_runs_of_its_task(small: Path) -> None:
    task = tasks.load_task(str(small / "soup.toml"))
    shorter = task.model_copy(update={"prompts": ["we"], "records": task.records[:1]})
    plain = Cell("soup", "dab")
    ablated = (plain, plain._replace(knobs=(("weight", 3.0),)))
    lm = tiny_lm("llama-tied")
    for name, cells, study in (("usual", (Cell("soup", "drawn"),), None), ("knobs", ablated, "ablation")):
        settings = RunSettings(cells, "quick", "tiny", "torch", study=study)
        run_evaluation(small / name, settings, [shorter], lambda: lm, tiny.judges(), lambda progress: None)
    blocks = report.blocks_of(read_several([small / "usual", small / "knobs"]))
    text = markdown(blocks)
    assert "# Slalom: soup, ablation" in text
    assert "### One knob at a time (knobs)" in text
    assert "| bias weight w | Success ↑ | PPL ↓ |" in text
    assert "figures/ablation-perplexity-knobs.svg" in text


def test_figures_of_the_same_study_in_several_folders_are_files_of_their_own(small: Path) -> None:
    task = tasks.load_task(str(small / "soup.toml"))
    settings = RunSettings((Cell("soup", "drawn"),), "quick", "tiny", "torch", study="exploration")
    for name in ("one", "my other"):
        run_evaluation(small / name, settings, [task], lambda: tiny_lm("llama-tied"), {}, lambda progress: None)
    text = markdown(report.blocks_of(read_several([small / "one", small / "my other"])))
    assert "## exploration (one)" in text
    assert "figures/exploration-one.svg" in text
    assert "figures/exploration-my-other.svg" in text


def test_a_report_says_which_task_file_to_run_again(small: Path) -> None:
    source = str(small / "soup.toml")
    settings = RunSettings((Cell("soup", "drawn"),), "quick", "tiny", "torch")
    loaded = [tasks.load_task(source)]
    run_evaluation(small / "out", settings, loaded, lambda: tiny_lm("llama-tied"), tiny.judges(), lambda progress: None)
    assert f"slalom eval {source} --samplers drawn" in (small / "out" / "report.md").read_text()
