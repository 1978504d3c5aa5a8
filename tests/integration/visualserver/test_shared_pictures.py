"""Requests that need the same picture, the n choices of one above all: one turn at decoding, whoever leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.messages.cache import PermitRequest
from mmserve.messages.request import AbortRequest, choice_id
from tests.fakes.media import png
from tests.integration.visualserver.stack import PIXELS_NBYTES, Stack, play
from tests.integration.visualserver.test_permits import HeldDecoder, _abort, _held


def _take_turn(stack: Stack, name: str, nbytes: int = PIXELS_NBYTES) -> None:
    """For another process of the server."""
    assert stack.client.begin_turns([PermitRequest(name, nbytes, 0.0)], wait_s=5).come == (name,)


def test_n_children_of_a_request_share_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = HeldDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.holds(stack, "first")
        for child in range(4):
            stack.send(f"r-{child}", png(1), png(2))
        stack.send("last", png(3))
        await _held(stack, 3, 0)
        decoder.gate.set()
        assert await stack.received(6) == stack.sent
        assert sum(stack.tower.batches) == 4, "one preprocess for all"
        await _held(stack, 0, 0)
        snapshot = stack.table.snapshot()
        assert snapshot.max_turns == 3
        assert snapshot.budgets["pixels"].peak_nbytes == 4 * PIXELS_NBYTES, "each picture once"

    play(tmp_path, scenario)


def test_n_children_get_through_a_gate_for_one(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        for child in range(4):
            stack.send(f"r-{child}", png(1), png(2))
        assert await stack.received(4) == stack.sent
        assert sum(stack.tower.batches) == 2, "one preprocess for all"
        await _held(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_children_of_one_that_is_aborted_while_it_waits_get_its_turn(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        _take_turn(stack, "another server's")
        for child in range(4):
            stack.send(f"r-{child}", png(1))
        await _held(stack, 1, 1)
        for child in range(2):
            await _abort(stack, f"r-{child}")
        stack.client.end_turn("another server's")
        assert set(await stack.received(2)) == {"r-2", "r-3"}
        assert stack.tower.batches == [1]
        await _held(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_who_shares_a_picture_gets_a_turn_for_its_others_when_that_one_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = HeldDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        _take_turn(stack, "another server's", nbytes=5 * PIXELS_NBYTES)
        stack.send("one", png(1))
        stack.send("both", png(1), png(2))
        await _abort(stack, "after these")
        stack.client.end_turn("another server's")
        await _held(stack, 2, 0)
        decoder.gate.set()
        assert await stack.received(2) == stack.sent

    play(tmp_path, scenario, pixel_budget_mb=5)


def test_n_children_of_a_request_wait_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = HeldDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.holds(stack, "first")
        for child in range(4):
            stack.send(choice_id("r", child), png(1))
        stack.send("too many", png(2))
        del stack.sent["too many"]
        refused = (await stack.received(1))["too many"]
        assert isinstance(refused, AbortRequest)
        assert refused.reason == "queue_full"
        decoder.gate.set()
        assert await stack.received(5) == stack.sent

    play(tmp_path, scenario, max_queued_mm_requests=2)
