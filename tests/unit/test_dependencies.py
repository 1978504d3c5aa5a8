"""pyproject.toml declares exactly the packages that mmserve imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONAL = {"blake3", "opentelemetry", "ray", "transformers", "triton"}
"""Modules imported only where an option, a model or a GPU asks for them; declared as extras.
torch for GPUs brings triton."""


def test_every_imported_package_is_declared() -> None:
    undeclared = _imported() - _declared()
    assert not undeclared, f"mmserve imports {sorted(undeclared)}: add them to the dependencies in pyproject.toml"


def test_every_declared_package_is_imported() -> None:
    unused = _declared() - _imported()
    assert not unused, f"mmserve never imports {sorted(unused)}: remove them from the dependencies in pyproject.toml"


@cache
def _imported() -> set[str]:
    """Distributions whose modules mmserve imports, by their normalised names."""
    distributions = packages_distributions()
    modules = {name.partition(".")[0] for file in (ROOT / "mmserve").rglob("*.py") for name in _imports(file)}
    outside = modules - sys.stdlib_module_names - {"mmserve"} - OPTIONAL
    return {_normalised(distributions.get(module, [module])[0]) for module in outside}


def _imports(file: Path) -> Iterator[str]:
    """Names of imported modules, imports inside functions included."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{file} has a relative import"
            yield node.module


def _declared() -> set[str]:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return {_normalised(re.split(r"[<>=!~;\[ ]", requirement)[0]) for requirement in requirements}


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
