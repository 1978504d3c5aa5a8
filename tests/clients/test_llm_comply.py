"""llm-comply: the shapes and the order of events that OpenAI's and Anthropic's own specifications ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.clients.conftest import scripted_server

pytest.importorskip("llm_comply")

pytestmark = pytest.mark.client(
    "llm-comply", "llm-comply", suite="its tests of chat completions, Responses and messages"
)
_ANTHROPIC = ("--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its model has two names."""
    with scripted_server("gpt-5") as url:
        yield url


@pytest.mark.parametrize(
    ("format", "model", "options", "optional"),
    [
        ("openai-chat", "tiny", (), set()),
        ("anthropic", "tiny", _ANTHROPIC, set()),
        # With the name of a model that thinks: no other is asked for thoughts.
        ("open-responses", "gpt-5", (), set()),
    ],
)
def test_comply(
    server: str,
    format: str,
    model: str,
    options: tuple[str, ...],
    optional: set[str],
    record_property: Callable[[str, object], None],
) -> None:
    command = [sys.executable, "-c", "from llm_comply.cli import main; main()", "--format", format, "--json"]
    command += ["-u", f"{server}/v1", "-k", "x", "-m", model, *options]
    results = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)["results"]
    failed = {result["id"]: result for result in results if result["status"] not in ("passed", "skipped")}
    assert set(failed) <= optional, failed
    assert len(results) >= 8
    assert format != "open-responses" or [result["status"] for result in results] == ["passed"] * 13
    record_property("checks", sum(result["status"] == "passed" for result in results))
    if failed:
        record_property("note", f"{format}: left out {', '.join(sorted(failed))}")
