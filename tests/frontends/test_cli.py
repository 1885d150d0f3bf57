"""The command, as a person or a script would use and misuse it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import slalom
from slalom.constraints import Keywords
from slalom.constraints.constraint import Constraint
from slalom.decoding import Climb
from slalom.errors import SlalomError
from slalom.frontends.cli import app
from slalom.frontends.options import PANEL_OF, PANELS
from slalom.frontends.specs import GenerateSpec
from tests.conftest import tiny_classifier, tiny_lm

FIELDS = {"prompt", "text", "constraints", "satisfied", "perplexity", "steps", "seed", "seconds"}
FIELDS |= {"tokens_per_second", "sampler", "model"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LM and a tiny classifier, saved as anyone would save theirs."""
    root = tmp_path_factory.mktemp("models")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(root / "lm")
    lm.tokenizer.save_pretrained(root / "lm")
    model, tokenizer = tiny_classifier()
    model.float().save_pretrained(root / "clf")
    tokenizer.save_pretrained(root / "clf")
    return root


def run(*words: str, stdin: str | None = None):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(app, list(words), input=stdin)


def wish(folder: Path) -> list[str]:
    return [
        "--model",
        f"{folder}/lm",
        "--classifier",
        f"{folder}/clf",
        "--label",
        "good",
        "--length",
        "6",
        "--steps",
        "3",
    ]


def test_json_is_one_object_a_text_with_the_promised_fields_and_nothing_else(folder: Path) -> None:
    out = run("generate", "the food", "we", *wish(folder), "--keywords", "soup", "--samples", "2", "--json")
    rows = [json.loads(line) for line in out.stdout.splitlines()]
    assert out.exit_code == 0
    assert [(row["prompt"], row["seed"]) for row in rows] == [("the food", 0), ("the food", 1), ("we", 0), ("we", 1)]
    for row in rows:
        assert set(row) >= FIELDS
        assert "unsteered" not in row
        keywords, classifier = row["constraints"]
        assert set(keywords) == {"name", "score", "probability", "satisfied"}
        assert 0 <= classifier["probability"] <= 1
        assert keywords["probability"] is None
        assert row["satisfied"] == (keywords["satisfied"] and classifier["satisfied"])
        assert not row["text"].startswith(row["prompt"])


def test_a_text_can_be_had_again_from_its_prompt_and_seed_alone(folder: Path) -> None:
    many = run("generate", "the food", "we", *wish(folder), "--samples", "3", "--json")
    for row in map(json.loads, many.stdout.splitlines()):
        one = run("generate", row["prompt"], *wish(folder), "--seed", str(row["seed"]), "--json")
        assert json.loads(one.stdout)["text"] == row["text"]


def test_the_repetition_penalty_is_an_option_and_changes_the_text(folder: Path) -> None:
    words = ["generate", "the food", *wish(folder), "--sampler", "none", "--length", "40", "--json"]
    default, same, none, strong = (
        json.loads(run(*words, *given).stdout)["text"]
        for given in ([], *(["--repetition-penalty", penalty] for penalty in ("1.2", "1", "3")))
    )
    assert default == same
    assert none != strong


def test_a_weight_typed_is_the_weight_of_its_constraint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def steer(self: slalom.SteerableModel, prompts: object, wish: Constraint, **options: object) -> None:
        asked.append(wish.name)
        raise SlalomError("enough")

    monkeypatch.setattr(slalom.SteerableModel, "steer", steer)
    weights = ("--weight", "keywords=2", "--weight", "whole-sentences=0.5")
    run("generate", "we", "--model", f"{folder}/lm", "--keywords", "soup", "--whole-sentences", *weights)
    assert asked == ["2 * keywords:any(soup) + 0.5 * ends-with-sentence"]


def test_compare_shows_before_and_after(folder: Path) -> None:
    text = run("generate", "the food", *wish(folder), "--compare")
    assert text.exit_code == 0
    assert "unsteered" in text.stdout
    (row,) = map(json.loads, run("generate", "the food", *wish(folder), "--compare", "--json").stdout.splitlines())
    assert isinstance(row["unsteered"], str)


def test_prompts_come_from_a_file_or_from_standard_input(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the food\n\nwe\n")
    from_file = run("generate", "--prompts-file", f"{tmp_path}/prompts.txt", *wish(folder), "--json")
    piped = run("generate", *wish(folder), "--json", stdin="the food\nwe\n")
    texts = [[json.loads(line)["text"] for line in out.stdout.splitlines()] for out in (from_file, piped)]
    assert len(texts[0]) == 2
    assert texts[0] == texts[1]


def test_device_and_dtype_reach_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def refuse(*given: object) -> None:
        asked.append(given)
        raise SlalomError("enough")

    monkeypatch.setattr("slalom.api.open_parts", refuse)
    run("generate", "we", *wish(folder), "--device", "cuda:1", "--dtype", "float16")
    assert [given[1:3] for given in asked] == [("float16", "cuda:1")]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["generate", " ", "--keywords", "soup"], "the prompt is empty"),
        (["generate", "--keywords", "soup"], "no prompt given"),
        (["generate", "we"], "nothing to steer towards"),
        (["generate", "we", "--keywords", "soup", "--length", "0"], "length is 0"),
        (["generate", "we", "--keywords", "soup", "--steps", "-2"], "steps is -2"),
        (
            ["generate", "we", "--keywords", "soup", "--preset", "best"],
            "unknown preset 'best'",
        ),
        (["generate", "we", "--keywords", "soup", "--knob", "tau"], "must look like name=value"),
        (["generate", "we", "--keywords", "soup", "--weight", "2"], "--weight is '2'; it must look like name=value"),
        (["generate", "we", "--keywords", "soup", "--weight", "keywords=-1"], "weights.keywords is '-1'; input should"),
        (
            ["generate", "we", "--keywords", "soup", "--weight", "topic=2"],
            "weights has 'topic', which is not asked for",
        ),
        (["generate", "we", "--keywords", "soup", "--knob", "colour=1"], "unknown knob 'colour'; choose from width"),
        (["generate", "we", "--keywords", "soup", "--knob", "tau=-1"], "knob tau is '-1'; it must be at least"),
        (
            ["generate", "we", "--keywords", "soup", "--sampler", "dab", "--knob", "norm=big"],
            "knob norm is 'big'; choose from centred",
        ),
        (["generate", "we", "--keywords", "soup", "--dtype", "int3"], "unknown dtype 'int3'; choose from float32, bf"),
        (["generate", "we", "--keywords", "soup", "--device", "gpu"], "unknown device 'gpu'; give cpu, cuda"),
        (["generate", "we", "--keywords", "a\nb"], "cannot be written"),
        (["generate", "rain " * 70, "--keywords", "soup"], "reads at most 64"),
        (["generate", "--prompts-file", "none.txt", "--keywords", "soup"], "there is no file none.txt"),
        (["generate", "we", "--classifier", "{folder}/clf", "--label", "great"], "choose from bad, good"),
        (["generate", "we", "--classifier", "{folder}", "--label", "good"], "holds no classifier"),
        (["generate", "we", "--keywords", "soup", "--model", "{folder}"], "without a config.json"),
        (["generate", "we", "--regex", "(soup"], "the pattern '(soup' is no regular expression"),
        (["generate", "we", "--keywords", "soup", "--sampler", "lm-steer"], "make one with slalom train steer"),
        (["train", "steer", "none.jsonl", "--out", "x"], "there is no file none.jsonl"),
        (["train", "steer", "none.jsonl", "--out", "x", "--labels", "one"], "a steer needs at least two"),
        (["ls", "nonsense"], "choose from models, constraints, samplers, presets"),
        (["generate", "we", "--keywords", "soup", "--model", "./nowhere"], "there is no folder './nowhere'"),
        (["generate", "we", "--classifier", "./nowhere", "--label", "kind"], "there is no folder './nowhere'"),
    ],
)
def test_misuse_gets_one_sentence_and_status_2(folder: Path, words: list[str], complaint: str) -> None:
    filled = [word.replace("{folder}", str(folder)) for word in words]
    if filled[0] == "generate" and "--model" not in filled:
        filled += ["--model", f"{folder}/lm"]
    out = run(*filled)
    assert out.exit_code == 2
    assert out.stdout == ""
    assert complaint in out.stderr
    assert out.stderr.startswith("slalom: ")
    assert out.stderr.count("\n") == 1


def test_a_model_nobody_can_find_is_refused_without_a_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = run("generate", "we", "--keywords", "soup", "--model", "nobody/nothing")
    assert out.exit_code == 2
    assert "no language model could be loaded from 'nobody/nothing'" in out.stderr


def test_ctrl_c_half_way_ends_with_status_130_and_no_traceback(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "many.txt").write_text("the food\n" * 5000)
    words = ["--prompts-file", f"{tmp_path}/many.txt", *wish(folder), "--samples", "32", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "slalom.frontends.cli", "generate", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    assert process.stdout
    assert json.loads(process.stdout.readline())["prompt"] == "the food"  # it is at work
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_ls_lists_models_constraints_samplers_and_presets() -> None:
    out = run("ls", "--json")
    lists = json.loads(out.stdout)
    assert [row["name"] for row in lists["models"]][:2] == ["smollm2-135m-instruct", "minilm-l6"]
    assert {"sentiment", "keywords", "classifier"} <= {row["name"] for row in lists["constraints"]}
    assert lists["samplers"][0]["name"] == "climb"
    assert "paper" in {row["name"] for row in lists["presets"]}
    assert run("ls").exit_code == 0


def test_doctor_says_what_this_machine_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLALOM_HOME", str(tmp_path / "not" / "yet"))
    findings = json.loads(run("doctor", "--json").stdout)
    assert str(tmp_path) in findings["cache"]
    assert set(findings["models"].values()) == {"fetched when first used"}
    told = run("doctor")
    assert told.exit_code == 0
    assert "models         smollm2-135m-instruct: fetched when first used\n" in told.stdout
    assert "{" not in told.stdout


def test_the_version_is_printed_alone_and_is_the_packages() -> None:
    out = run("--version")
    assert out.exit_code == 0
    assert out.stdout == f"slalom {slalom.__version__}\n"


def test_the_help_of_preset_names_every_preset_of_the_default_sampler() -> None:
    (option,) = (one for one in get_command(app).commands["generate"].params if one.name == "preset")
    assert all(name in option.help for name in Climb.presets(Keywords(["soup"])))


def test_help_has_examples() -> None:
    for words in (["--help"], ["generate", "--help"], ["train", "classifier", "--help"], ["calibrate", "--help"]):
        out = run(*words)
        assert out.exit_code == 0
    assert "slalom generate" in run("generate", "--help").stdout


def test_a_steer_is_trained_and_used(folder: Path, tmp_path: Path) -> None:
    rows = [("the soup was good", 1), ("the soup was bad", 0)]
    lines = [{"text": text, "label": label, "split": split} for text, label in rows for split in ("train", "dev")]
    (tmp_path / "taste.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = f"{tmp_path}/steer"
    words = ["train", "steer", f"{tmp_path}/taste.jsonl", "--labels", "bad,good", "--lm", f"{folder}/lm", "--out", out]
    trained = run(*words, "--steps", "5", "--json")
    assert trained.exit_code == 0
    assert "4,096 trained parameters" in trained.stderr
    card = json.loads(trained.stdout)
    assert card["recipe"]["steps"] == 5
    assert set(card["next_token_loss"]) == {"bad texts", "good texts"}
    assert run(*words, "--steps", "5").stdout.startswith("bad texts: ")
    steered = run("generate", "we", *wish(folder), "--sampler", "lm-steer", "--knob", f"steer={out}", "--json")
    assert json.loads(steered.stdout)["sampler"] == "lm-steer"


def test_the_help_lists_every_field_of_a_text_below_the_heading_it_belongs_to() -> None:
    assert set(PANEL_OF) == set(GenerateSpec.model_fields) - {"prompts", "chat"}
    shown = run("generate", "--help").stdout
    places = [shown.index(heading) for heading in ("Options", *PANELS)]
    assert places == sorted(places)
