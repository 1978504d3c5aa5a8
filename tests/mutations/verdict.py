"""Runs a family's tests with a mutation, in a copy of the sources.

The tests run in a child of this process, which has torch and transformers loaded: importing them anew takes longer
than most of the tests.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutations.mutation import Family, Mutation, TargetError, mutate

_ROOT = Path(__file__).parents[2]
_COPIED = ("mmserve", "tests", "pyproject.toml")
_OPTIONS = (
    "-x",
    "-n0",
    "--tb=line",
    "-rfE",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore::pytest.PytestAssertRewriteWarning",
)
"""The warning: transformers has imported packages that are plugins too."""
_NOTICED = re.compile(r"^(?:FAILED|ERROR) (?:tests/unit/)?(.+?)(?: - (.*))?$", re.MULTILINE)
_PASSED, _FAILED, _CRASHED = 0, 1, 70
"""Exit codes of pytest, and of a child in which it raised."""
_SHARED = ("torch", "transformers")
"""Packages that do not import those under test."""


class Verdict(NamedTuple):
    outcome: str
    """``killed``, ``SURVIVED``, or ``ERROR`` where the tests say nothing about the mutation."""
    by: str
    """The test that noticed it, or what is wrong."""
    why: str = ""
    """What pytest's summary says of that test."""


def verdict(family: Family, mutation: Mutation | None) -> Verdict:
    """Without a mutation, the family's tests must pass: ``SURVIVED`` is as it should be."""
    with tempfile.TemporaryDirectory(prefix="mmserve-mutation-") as name:
        root = Path(name)
        for each in _COPIED:
            source = _ROOT / each
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, root / each)
        if mutation is not None:
            try:
                mutate(root / "mmserve", mutation)
            except TargetError as error:
                return Verdict("ERROR", str(error))
        return verdict_of(*_run_tests(root, family))


def verdict_of(exit_code: int, output: str) -> Verdict:
    """``exit_code``: of pytest. Tests that could not be collected, or of which none was selected, are an error."""
    if exit_code == _PASSED:
        return Verdict("SURVIVED", "")
    found = _NOTICED.search(output)
    if exit_code == _FAILED and found is not None:
        return Verdict("killed", found[1], found[2] or "")
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    return Verdict("ERROR", f"pytest ended with {exit_code}: {last}")


def _run_tests(root: Path, family: Family) -> tuple[int, str]:
    """pytest's exit code and output."""
    log, imported = root / "log", root / "imported"
    for name in _SHARED:
        importlib.import_module(name)
    child = os.fork()
    if child == 0:
        exit_code = _CRASHED
        try:
            with log.open("w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            exit_code = _pytest_below(root, [*_OPTIONS, "-k", family.select, *_files(family)])
            imported.write_text("\n".join(name for name in sys.modules if name.partition(".")[0] in _SHARED))
        except BaseException:  # noqa: BLE001 - the end of a process
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(exit_code)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if exit_code == _PASSED:
        for name in imported.read_text().splitlines():
            with contextlib.suppress(Exception):  # some names are not of modules
                importlib.import_module(name)
    return exit_code, log.read_text()


def _files(family: Family) -> list[str]:
    return [f"tests/unit/{file}" for file in family.tests]


def _pytest_below(root: Path, arguments: Sequence[str]) -> int:
    """Run pytest on the copy in ``root``, whose packages replace those of this process. Its exit code."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "mmserve")]:
        del sys.modules[name]
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    os.environ["COLUMNS"] = "1000"  # pytest leaves reasons out of the summary that a line has no room for
    sys.path[:] = [str(root), *(path for path in sys.path if path and Path(path).resolve() != _ROOT)]
    exit_code = int(pytest.main(list(arguments)))
    if not Path(sys.modules["mmserve"].__file__ or "").is_relative_to(root):
        raise RuntimeError("the tests have imported another copy of mmserve")
    return exit_code
