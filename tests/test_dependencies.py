"""What the source imports is what pyproject.toml declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent


def imported() -> set[str]:
    """The first word of every import under src, those of Python itself and our own left out."""
    names = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"slalom"}


def declared() -> set[str]:
    """The packages that a user can install with us: what is always needed, and every extra but the developers'."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [one for name, some in project["optional-dependencies"].items() if name != "dev" for one in some]
    return {normal(re.split(r"[^\w.-]", one)[0]) for one in [*project["dependencies"], *extras]}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_package_the_source_imports_is_declared() -> None:
    providers = packages_distributions()
    undeclared = {name for name in imported() if not {normal(one) for one in providers.get(name, [name])} & declared()}
    assert undeclared == set()
