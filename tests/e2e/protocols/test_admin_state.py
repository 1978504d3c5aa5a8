"""``/admin/state`` of a whole server has the facts of every process, whichever HTTP worker answers."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from tests.e2e.stack import Stack, ask
from tests.fakes.pictures.cache import until
from training.sample import samples


def _state(stack: Stack) -> dict[str, Any]:
    """From a connection of its own, so that any worker may answer."""
    with urllib.request.urlopen(f"{stack.url}/admin/state", timeout=30) as answer:
        return dict(json.loads(answer.read()))


def test_a_picture_is_seen_in_the_arena_the_tokens_and_the_stages(stack: Stack) -> None:
    before = _state(stack)
    (sample,) = samples(1, seed=29)
    ask(stack.client(), sample.messages)

    def is_seen() -> bool:
        state = _state(stack)
        arms = state["last_hour"]["arms"].values()
        return (
            state["load"]["generation_tokens"] > before["load"]["generation_tokens"]
            and sum(arm["stages"]["alloc"]["count"] for arm in arms) > 0
            and state["last_hour"]["stages"]["encode"]["count"] > 0
            and any(kind == "embed" for _, _, kind, _ in state["arena"]["extents"])
        )

    until(is_seen)
    state = _state(stack)
    assert state["phase"] == "ready"
    assert state["missing"] == []
    titles = {process["title"] for process in state["processes"]}
    assert {"supervisor", "router", "cache_server", "httpserver 0", "model_backend rank 0"} <= titles
    assert all(process["state"] == "ready" and process["rss_bytes"] > 0 for process in state["processes"])
    used = sum(nbytes for _, nbytes, _, _ in state["arena"]["extents"])
    assert used + state["arena"]["free_nbytes"] == state["arena"]["nbytes"]
