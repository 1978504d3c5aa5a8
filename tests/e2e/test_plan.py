"""``mmserve plan`` against the figures of a running server."""

from __future__ import annotations

import json

import pytest

from mmserve.cli import main as cli
from tests.e2e.stack import Stack, kv_tokens


def test_a_plan_agrees_with_the_running_server(default_stack: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """Within 5 %."""
    assert cli.main(["plan", "--model", "llava", "--kv-cache-gb", "1", "--dtype", "float32", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    default_stack.post("/v1/completions", {"model": "llava", "prompt": "hello", "max_tokens": 1})
    assert planned["kv_tokens"] == pytest.approx(kv_tokens(default_stack), rel=0.05)
    assert planned["arena_bytes"] == pytest.approx(default_stack.metric("mm_arena_bytes"), rel=0.05)
