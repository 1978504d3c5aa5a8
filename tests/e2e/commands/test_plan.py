"""``mmserve plan`` beside a running server. Of every family: test_families.py, test_vision_families.py."""

from __future__ import annotations

from tests.e2e.commands.plans import check_plan
from tests.e2e.stack import Stack


def test_a_plan_agrees_with_the_running_server(default_stack: Stack) -> None:
    default_stack.post("/v1/completions", {"model": "llava", "prompt": "hello", "max_tokens": 1})
    check_plan(default_stack, "llava", "--kv-cache-gb", "1", "--dtype", "float32")
