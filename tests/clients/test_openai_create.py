"""The create tests of openai's source distribution: each checks the types of an answer strictly."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from xml.etree import ElementTree

import openai
import pytest

from tests.clients.conftest import scripted_server

pytestmark = pytest.mark.client(
    "openai's own tests", "openai", suite="the create tests of its source distribution, and those of models"
)
_SERVED = frozenset({"chat/test_completions", "test_completions", "test_embeddings", "test_models", "test_responses"})
"""Files of tests whose resource is served. A test elsewhere is not run, and counted."""
_OF_INTEREST = re.compile(r"create|Models::.*(list|retrieve)")
_NOT_RUN = {
    "every field at once, refused ones among them": re.compile("with_all_params"),
    "refused by the SDK itself": re.compile("path_params"),
    "Responses without model and input": re.compile(r"/test_responses\.py"),
    "vectors in strict mode, which asks for base64 and takes only lists": re.compile(
        r"test_embeddings\.py.*\[(strict|aiohttp)\]"
    ),
}
_MODEL = re.compile(r"model=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of the installed version."""
    archive = Path(sys.prefix, "sdist", f"openai-{openai.__version__}.tar.gz")
    if not archive.exists():
        pytest.skip("make clients downloads openai's source distribution")
    directory = tmp_path_factory.mktemp("openai")
    with tarfile.open(archive) as unpacked:
        unpacked.extractall(directory, filter="data")
    return directory / archive.name.removesuffix(".tar.gz")


def test_create(suite: Path, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    every = [test for test in _collected(suite) if _OF_INTEREST.search(test)]
    chosen = [test for test in every if _resource(test) in _SERVED and _reason(test) is None]
    assert {_resource(test) for test in chosen} >= {"chat/test_completions", "test_completions", "test_embeddings"}
    names = {name for resource in _SERVED for name in _models(suite / "tests" / "api_resources" / f"{resource}.py")}
    with scripted_server(*sorted(names)) as url:
        report = _run(suite, url, chosen, tmp_path)
    failed = [test.get("name") for test in report.iter("testcase") if len(test)]
    assert not failed, failed
    record_property("checks", len(chosen))
    record_property("not_run", len(every) - len(chosen))
    record_property("note", _left_out(set(every) - set(chosen)))


def _collected(suite: Path) -> list[str]:
    printed = _pytest(suite, "--collect-only", "-q", "tests/api_resources").stdout
    return [line for line in printed.splitlines() if "::" in line]


def _run(suite: Path, url: str, tests: Iterable[str], directory: Path) -> ElementTree.Element:
    names, report = directory / "tests", directory / "report.xml"
    names.write_text("\n".join(tests))
    done = _pytest(suite, "-q", f"--junitxml={report}", f"@{names}", TEST_API_BASE_URL=f"{url}/v1")
    assert report.exists(), done.stdout + done.stderr
    print(done.stdout)
    return ElementTree.parse(report).getroot()


def _pytest(suite: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:codspeed", "-p", "no:cacheprovider", *arguments]
    command += ["-W", "default"]
    return subprocess.run(
        command, cwd=suite, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=280
    )


def _resource(test: str) -> str:
    return test.removeprefix("tests/api_resources/").partition(".py::")[0]


def _models(file: Path) -> set[str]:
    """The names of models that a file of tests asks for."""
    return set(_MODEL.findall(file.read_text())) if file.exists() else set()


def _reason(test: str) -> str | None:
    """Why a test of a served resource is not run."""
    return next((reason for reason, names in _NOT_RUN.items() if names.search(test)), None)


def _left_out(tests: Iterable[str]) -> str:
    """How many tests were not run, for each reason or resource."""
    left = Counter(
        (_reason(test) or "?") if _resource(test) in _SERVED else "resources that are not served" for test in tests
    )
    return "left out: " + ", ".join(f"{name} ({count})" for name, count in sorted(left.items()))
