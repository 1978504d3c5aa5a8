"""llm-comply: the shapes and the order of events that OpenAI's and Anthropic's own specifications ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("llm_comply")

pytestmark = pytest.mark.client(
    "llm-comply", "llm-comply", suite="its tests of chat completions, Responses and messages"
)
_ANTHROPIC = ("--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01")


@pytest.mark.parametrize(
    ("format", "options", "optional"),
    [
        ("openai-chat", (), set()),
        ("anthropic", _ANTHROPIC, set()),
        # Compacting a conversation is optional; the last is for the names of OpenAI's reasoning models.
        ("open-responses", (), {"compact-response", "reasoning-summary"}),
    ],
)
def test_comply(
    server_url: str,
    format: str,
    options: tuple[str, ...],
    optional: set[str],
    record_property: Callable[[str, object], None],
) -> None:
    command = [sys.executable, "-c", "from llm_comply.cli import main; main()", "--format", format, "--json"]
    command += ["-u", f"{server_url}/v1", "-k", "x", "-m", "tiny", *options]
    results = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)["results"]
    failed = {result["id"]: result for result in results if result["status"] not in ("passed", "skipped")}
    assert set(failed) <= optional, failed
    assert len(results) >= 8
    record_property("checks", sum(result["status"] == "passed" for result in results))
    if failed:
        record_property("note", f"{format}: left out {', '.join(sorted(failed))}")
