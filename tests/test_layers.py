"""The folder listing reads in the order the data moves: a folder imports only from folders before it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "slalom"
ORDER = ["backbone", "constraints", "decoding", "api", "evaluation", "frontends"]  # api is a file
ALWAYS = {"errors", "types"}
TRAINING_MAY = {"backbone", "constraints", "training"}  # off the path
LAST_MAY = {*ORDER, "training"}  # the front ends offer everything


def imported_layers(file: Path) -> set[str]:
    """The second words of all `slalom.…` imports, those for type checkers alone left out."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("slalom.")} - ALWAYS


def may_import(folder: str) -> set[str]:
    if folder == "training":
        return TRAINING_MAY
    return LAST_MAY if folder == "frontends" else set(ORDER[: ORDER.index(folder) + 1])


FILES = sorted(
    [SOURCE / "api.py", *(file for folder in (*ORDER, "training") for file in (SOURCE / folder).rglob("*.py"))]
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_from_layers_before_its_own(file: Path) -> None:
    folder = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert imported_layers(file) <= may_import(folder)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_opens_by_saying_what_goes_in_and_out(file: Path) -> None:
    assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))


def imported_by(code: str, modules: tuple[str, ...]) -> str:
    """Which of these modules a fresh process has after running the code, as a list is printed."""
    code = f"import sys; {code}; print([one for one in {modules} if one in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.strip()


def test_importing_slalom_is_quick() -> None:
    """Nothing heavy is imported before it is needed."""
    heavy = ("torch", "transformers", "ray", "pyarrow")
    assert imported_by("import slalom, slalom.frontends.cli", heavy) == "[]"


def test_importing_the_api_imports_no_model_classes_of_transformers() -> None:
    """They take longer than torch, with the compiler, SymPy and SciPy behind them; openvino needs none of them."""
    heavy = ("transformers.modeling_utils", "transformers.models", "torch._dynamo", "torch.distributed.tensor")
    assert imported_by("import slalom.api, slalom.constraints", (*heavy, "scipy", "sympy", "peft", "openvino")) == "[]"
