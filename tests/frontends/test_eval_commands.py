"""`slalom eval`, its sheets for readers, and `slalom report`, as a person or a script would use and misuse them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from slalom.decoding import SAMPLERS
from slalom.evaluation import judges
from slalom.evaluation.tasks import NAMES
from slalom.frontends.cli import app
from tests.conftest import tiny_lm
from tests.evaluation import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny LM and a tiny task, in files."""
    root = tmp_path_factory.mktemp("eval")
    lm = tiny_lm("llama-tied")
    lm.model.save_pretrained(root / "lm")
    lm.tokenizer.save_pretrained(root / "lm")
    tiny.task_in(root)
    return root


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLERS, "drawn", tiny.Drawn)
    monkeypatch.setitem(judges.JUDGE_SETS, "ours", tiny.judges(missing=("bertscore",)))


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def asked(folder: Path, out: Path, *more: str) -> list[str]:
    words = ["eval", f"{folder}/soup.toml", "--samplers", "drawn,drawn:hot", "--model", f"{folder}/lm"]
    return [*words, "--engine", "torch", "--out", str(out), *more]


def test_eval_writes_texts_scores_and_a_report_and_prints_figures_as_json(folder: Path, tmp_path: Path) -> None:
    out = run(*asked(folder, tmp_path / "out", "--strengths", "0.5,1", "--prefix", "--json"))
    assert out.exit_code == 0, out.output
    rows = json.loads(out.stdout)["tasks"]["soup"]
    assert [(row["preset"], row["strength"], row["prefix"]) for row in rows] == [
        ("default", 0.5, True),
        ("default", 1.0, True),
        ("hot", 0.5, True),
        ("hot", 1.0, True),
    ]
    assert rows[0]["metrics"]["bertscore"] is None
    assert rows[0]["metrics"]["success"]["n"] == rows[0]["texts"] == 24
    names = {path.name for path in (tmp_path / "out").iterdir()} - {".lock"}
    assert names == {"generations.jsonl", "scores.jsonl", "run.json", "report.md", "report.html", "figures"}


def test_knobs_are_turned_named_in_the_report_and_kept_off_the_lm_alone(folder: Path, tmp_path: Path) -> None:
    words = [word.replace("drawn:hot", "none") for word in asked(folder, tmp_path / "out", "--knob", "heat=0.001")]
    out = run(*words, "--json")
    assert out.exit_code == 0, out.output
    rows = json.loads(out.stdout)["tasks"]["soup"]
    assert [(row["sampler"], row["knobs"]) for row in rows] == [("drawn", {"heat": 0.001}), ("none", {})]
    records = [json.loads(line) for line in (tmp_path / "out" / "generations.jsonl").read_text().splitlines()]
    drawn = [record for record in records if record["sampler"] == "drawn"]
    assert {record["knobs"]["heat"] for record in drawn} == {0.001}
    cases = [(record["item"], record["length"]) for record in drawn]
    texts = [record["text"] for record in drawn]
    assert len(set(zip(cases, texts, strict=True))) == len(set(cases))  # nearly greedy: samples are alike
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| drawn, heat=0.001<br>24 texts |" in report
    assert "--knob heat=0.001 --out" in report
    # The same folder takes the sampler as it is beside it.
    assert run(*asked(folder, tmp_path / "out")).exit_code == 0
    assert "| drawn<br>24 texts |" in (tmp_path / "out" / "report.md").read_text()


def test_eval_says_where_the_report_is_and_report_prints_it_again(folder: Path, tmp_path: Path) -> None:
    out = run(*asked(folder, tmp_path / "out"))
    assert out.stdout.split() == [str(tmp_path / "out" / "report.md"), str(tmp_path / "out" / "report.html")]
    assert run("report", str(tmp_path / "out")).stdout == (tmp_path / "out" / "report.md").read_text()


def test_report_compares_folders(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(*asked(folder, tmp_path / name, "--seed", "1")).exit_code == 0
    words = ["report", f"{tmp_path}/a", f"{tmp_path}/b"]
    out = run(*words, "--out", str(tmp_path / "both"))
    assert out.exit_code == 0, out.output
    assert "drawn (a)" in (tmp_path / "both" / "report.html").read_text()
    assert len(json.loads(run(*words, "--json").stdout)["runs"]) == 2


def test_a_sheet_goes_out_blind_and_comes_back_as_a_table(folder: Path, tmp_path: Path) -> None:
    assert run(*asked(folder, tmp_path / "out")).exit_code == 0
    sheet = tmp_path / "sheet.csv"
    made = run("eval", "sheet", f"{tmp_path}/out", "--per-cell", "6", "--out", str(sheet))
    assert made.exit_code == 0, made.output
    assert [Path(line).name for line in made.stdout.split()] == [
        "sheet.csv",
        "sheet.html",
        "sheet.txt",
        "sheet.key.json",
    ]
    assert "drawn" not in sheet.read_text() + sheet.with_suffix(".html").read_text()
    sheet.write_text(sheet.read_text().replace(",,,", ",,4,0"))
    read = run("eval", "read", str(sheet), "--against", "drawn:hot", "--out", f"{tmp_path}/ratings")
    assert read.exit_code == 0, read.output
    text = (tmp_path / "ratings" / "ratings.md").read_text()
    assert "| drawn | 6 | — | 4.00<br>4.00 to 4.00 | 4<br>4 to 4 | — | 0.00<br>0.00 to 0.00 |" in text
    assert "Paired differences to drawn:hot" in text
    found = json.loads(run("eval", "read", str(sheet), "--json").stdout)
    assert found["against"] == "drawn"
    assert found["missing"]["sentiment"] == found["texts"]


def test_eval_takes_its_options_before_its_tasks_still_and_points_to_the_sheets(folder: Path, tmp_path: Path) -> None:
    words = asked(folder, tmp_path / "out")
    assert run(words[0], *words[2:], words[1]).exit_code == 0
    assert "slalom eval sheet" in " ".join(run("eval", "--help").stdout.split())
    assert "sheet.key.json" in run("eval", "sheet", "--help").stdout
    assert "--against" in run("eval", "read", "--help").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["eval", "poems", "--out", "{out}"], "unknown task 'poems'; choose from sentiment, detox"),
        (["eval", "none.toml", "--out", "{out}"], "there is no task file none.toml"),
        (["eval", "sentiment", "--samplers", "dlp", "--out", "{out}"], "unknown sampler 'dlp'; choose from climb"),
        (["eval", "sentiment", "--samplers", "dab:x", "--out", "{out}"], "unknown preset 'x' of dab; choose from"),
        (
            ["eval", "sentiment", "--preset", "huge", "--out", "{out}"],
            "unknown preset 'huge' of sentiment; choose from",
        ),
        (["eval", "exploration", "--preset", "huge", "--out", "{out}"], "unknown preset 'huge'"),
        (["eval", "sentiment", "--judges", "me", "--out", "{out}"], "unknown judges 'me'; choose from ours, paper"),
        (["eval", "sentiment", "--engine", "steam", "--out", "{out}"], "unknown engine 'steam'"),
        (["eval", "sentiment", "--strengths", "1,x", "--out", "{out}"], "strengths is '1,x'; it must be numbers"),
        (["eval", "sentiment", "--strengths", "-1", "--out", "{out}"], "strengths is '-1'; each must be at least 0"),
        (["eval", "sentiment", "--knob", "lokks=3", "--out", "{out}"], "unknown knob 'lokks'; choose from width"),
        (["eval", "sentiment", "--knob", "looks", "--out", "{out}"], "--knob is 'looks'; it must look like name=value"),
        (["eval", "ablation", "--knob", "tau=1", "--out", "{out}"], "ablation is a study and sets knobs itself"),
        (["eval", "ablation", "detox", "--out", "{out}"], "ablation is a study and stands alone; leave detox out"),
        (["eval", "sentiment", "--out", "{folder}"], "holds no evaluation; give a new folder"),
        (["eval", "sentiment", "--prefix", "--out", "{out}"], "the task sentiment has no prefix"),
        (["report", "{folder}"], "holds no evaluation (there is no run.json in it)"),
        (["report", "nowhere"], "nowhere holds no evaluation"),
        (["eval", "sheet", "{folder}", "--out", "{out}/s.csv"], "holds no evaluation (there is no run.json in it)"),
        (["eval", "read", "{out}/s.csv"], "s.key.json; it was written beside the sheet, name it with --key"),
    ],
)
def test_misuse_gets_one_sentence_and_status_2(folder: Path, tmp_path: Path, words: list[str], complaint: str) -> None:
    out = run(*(word.format(folder=folder, out=tmp_path / "out") for word in words))
    assert out.exit_code == 2
    assert out.stdout == ""
    assert complaint in out.stderr
    assert out.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_texts_of_other_settings_are_refused_or_written_anew(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "soup.toml").write_text(tiny.TASK)
    words = [word.replace(str(folder / "soup.toml"), f"{tmp_path}/soup.toml") for word in asked(folder, tmp_path / "x")]
    assert run(*words).exit_code == 0
    (tmp_path / "soup.toml").write_text(tiny.TASK.replace("samples = 2", "samples = 2\ntop_p = 0.5"))
    refused = run(*words)
    assert refused.exit_code == 2
    assert "once more with --anew" in refused.stderr
    assert run(*words, "--anew").exit_code == 0
    records = [json.loads(line) for line in (tmp_path / "x" / "generations.jsonl").read_text().splitlines()]
    assert {record["top_p"] for record in records} == {0.5}


def test_a_model_nobody_can_find_is_said_before_anything_is_written(folder: Path, tmp_path: Path) -> None:
    out = run(
        "eval", f"{folder}/soup.toml", "--samplers", "drawn", "--model", str(folder), "--out", str(tmp_path / "x")
    )
    assert out.exit_code == 2
    assert "without a config.json" in out.stderr


def test_ls_lists_the_tasks_with_their_sizes() -> None:
    rows = json.loads(run("ls", "tasks", "--json").stdout)["tasks"]
    assert [row["name"] for row in rows] == list(NAMES)
    assert rows[1]["paper texts"] == 20_000


def test_a_queue_is_run_and_its_state_shown(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.nice", lambda more: more)  # the tests after this one are not to be slowed
    entry = f'tasks = ["{folder}/soup.toml"]\nmodel = "{folder}/lm"\nengine = "torch"\n'
    runs = [f'[[runs]]\nname = "{name}"\nsamplers = "{name}"\n{entry}' for name in ("drawn", "none")]
    (tmp_path / "queue.toml").write_text("\n".join(runs))
    queue = str(tmp_path / "queue.toml")
    unjudged = run("eval", "queue", queue, "--only", "drawn")
    assert unjudged.exit_code == 2
    assert "drawn failed: not judged by bertscore (no bertscore today)" in " ".join(unjudged.stderr.split())
    assert "drawn: 24 of 24, 0 judged" in unjudged.stdout
    monkeypatch.setitem(judges.JUDGE_SETS, "ours", tiny.judges())
    judged = run("eval", "queue", queue, "--only", "drawn")
    assert judged.exit_code == 0
    assert judged.stdout.splitlines()[0] == "drawn: 24 of 24"
    assert (tmp_path / "drawn" / "report.md").exists()
    out = run("eval", "queue", queue, "--status", "--json")
    assert [(one["name"], one["done"], one["total"]) for one in json.loads(out.stdout)["runs"]] == [
        ("drawn", 24, 24),
        ("none", 0, 24),
    ]
    (tmp_path / "queue.toml").write_text("\n".join(runs).replace("model", "seed = 5\nmodel"))
    said = run("eval", "queue", queue, "--status").stdout.splitlines()
    assert said[0].endswith(", its folder was begun with seed 0, not 5: give the run another name")
    refused = run("eval", "queue", queue, "--only", "bolt")
    assert refused.exit_code == 2
    assert "has no run 'bolt'; choose from drawn, none" in refused.output
