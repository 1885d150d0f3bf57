"""Constraints of other packages, found by their entry points."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slalom.api import SteerableModel
from slalom.constraints.plugins import GROUP, registered, registered_constraint
from slalom.errors import SlalomError
from slalom.frontends.cli import app
from slalom.frontends.specs import make_spec
from tests.helpers import draft_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "extra_constraint"


def install(place: Path, name: str, points: dict[str, str]) -> None:
    """What pip leaves behind of a package, as far as entry points go."""
    info = place / f"{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{key} = {value}\n" for key, value in points.items()]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(lines))


@pytest.fixture
def extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example package, installed."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path, project["name"], project["entry-points"][GROUP])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.usefixtures("extra")
def test_an_installed_packages_constraint_can_be_used_by_its_name(llama: SteerableModel) -> None:
    constraint = registered_constraint("alliteration", "s")
    draft = draft_of(llama, [("the sea", " sat so soft")])
    assert constraint.satisfied(draft).item()
    out = llama.steer("the food", make_spec(spec_of("alliteration", "r")).constraint(), length=8, steps=3)
    assert [wish.name for wish in out.rows[0].constraints] == ["keywords:any(soup)", "alliteration:r"]


@pytest.mark.usefixtures("extra")
def test_ls_lists_it_with_the_package_it_comes_from() -> None:
    out = CliRunner().invoke(app, ["ls", "constraints", "--json"])
    rows = {row["name"]: row for row in json.loads(out.stdout)["constraints"]}
    assert rows["alliteration"]["from"] == "extra-constraint"
    assert "begin with a letter" in rows["alliteration"]["what"]
    assert rows["keywords"]["from"] == "slalom"


@pytest.mark.usefixtures("extra")
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("rhyme=ay", "unknown constraint 'rhyme'; choose from alliteration"),
        ("alliteration=sea", "the letter is 'sea'; it must be one letter"),
        ("alliteration", "--constraint is 'alliteration'; it must look like name=value"),
    ],
)
def test_misuse_gets_one_sentence(given: str, complaint: str, tiny_folder: Path) -> None:
    out = CliRunner().invoke(app, ["generate", "we", "--model", str(tiny_folder), "--constraint", given])
    assert out.exit_code == 2
    assert complaint in out.stderr


def test_without_such_packages_no_name_is_known() -> None:
    assert "rhyme" not in registered()
    with pytest.raises(SlalomError, match="unknown constraint 'rhyme'"):
        registered_constraint("rhyme", "ay")


def test_a_package_that_is_broken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "broken", {"gone": "no_such_module:Gone", "odd": "builtins:str"})
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SlalomError, match=r"'gone' \(no_such_module:Gone\) could not be loaded"):
        registered_constraint("gone", "x")
    with pytest.raises(SlalomError, match="builtins:str made a str of 'x'; it must make a Constraint"):
        registered_constraint("odd", "x")
    out = CliRunner().invoke(app, ["ls", "constraints", "--json"])
    assert "could not be loaded" in out.stdout


def spec_of(name: str, argument: str) -> dict[str, object]:
    return {"prompts": ["the food"], "keywords": ["soup"], "constraints": {name: argument}}


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, llama: SteerableModel) -> Path:
    """The tiny LM, saved."""
    folder = tmp_path_factory.mktemp("lm")
    llama.model.save_pretrained(folder)
    llama.tokenizer.save_pretrained(folder)
    return folder
