"""``mmserve plan`` beside the figures of a running server."""

from __future__ import annotations

import contextlib
import io
import json
from unittest.mock import patch

import pytest

from mmserve.cli import main as cli
from tests.e2e.stack import Stack, kv_tokens


def check_plan(stack: Stack, model: str, *options: str) -> None:
    """With the options of the server, it says within 5 % what the KV cache and the arena are. The server has answered
    something."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), patch("mmserve.cli.plan.hardware.read_rate", return_value=1e10):
        assert cli.main(["plan", "--model", model, *options, "--memory-gb", "16", "--json"]) == 0
    planned = json.loads(printed.getvalue())
    assert planned["kv_tokens"] == pytest.approx(kv_tokens(stack), rel=0.05)
    assert planned["arena_bytes"] == pytest.approx(stack.metric("mm_arena_bytes"), rel=0.05)
