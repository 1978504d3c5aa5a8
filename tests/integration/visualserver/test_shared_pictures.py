"""Requests that need the same picture, such as the n choices of one, share one decode permit."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.messages.cache import PermitRequest
from mmserve.messages.request import AbortRequest, choice_id
from tests.fakes.pictures.media import png
from tests.integration.visualserver.stack import PIXELS_NBYTES, Stack, play
from tests.integration.visualserver.test_permits import BlockedDecoder, _until_permits


def _acquire_permit(stack: Stack, name: str, nbytes: int = PIXELS_NBYTES) -> None:
    """Acquire a permit as another visual server would."""
    assert stack.client.acquire_permits([PermitRequest(name, nbytes, 0.0)], wait_s=5).granted == (name,)


def test_n_choices_of_a_request_share_one_permit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        for choice in range(4):
            stack.send(f"r-{choice}", png(1), png(2))
        stack.send("last", png(3))
        await _until_permits(stack, 3, 0)
        decoder.gate.set()
        assert await stack.received(6) == stack.sent
        assert sum(stack.tower.batches) == 4, "one preprocess for all"
        await _until_permits(stack, 0, 0)
        snapshot = stack.table.snapshot()
        assert snapshot.peak_permits == 3
        assert snapshot.budgets["pixels"].peak_nbytes == 4 * PIXELS_NBYTES, "each picture once"

    play(tmp_path, scenario)


def test_n_choices_complete_with_a_limit_of_one_permit(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        for choice in range(4):
            stack.send(f"r-{choice}", png(1), png(2))
        assert await stack.received(4) == stack.sent
        assert sum(stack.tower.batches) == 2, "one preprocess for all"
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_remaining_choices_get_a_permit_when_the_one_that_asked_is_aborted(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        _acquire_permit(stack, "another server's")
        for choice in range(4):
            stack.send(f"r-{choice}", png(1))
        await _until_permits(stack, 1, 1)
        for choice in range(2):
            await stack.abort(f"r-{choice}")
        stack.client.release_permit("another server's")
        assert set(await stack.received(2)) == {"r-2", "r-3"}
        assert stack.tower.batches == [1]
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_a_request_gets_a_permit_for_its_other_pictures_when_the_shared_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        _acquire_permit(stack, "another server's", nbytes=5 * PIXELS_NBYTES)
        stack.send("one", png(1))
        stack.send("both", png(1), png(2))
        await stack.abort("after these")
        stack.client.release_permit("another server's")
        await _until_permits(stack, 2, 0)
        decoder.gate.set()
        assert await stack.received(2) == stack.sent

    play(tmp_path, scenario, pixel_budget_mb=5)


def test_n_choices_of_a_request_count_as_one_waiting_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        for choice in range(4):
            stack.send(choice_id("r", choice), png(1))
        stack.send("too many", png(2))
        del stack.sent["too many"]
        refused = (await stack.received(1))["too many"]
        assert isinstance(refused, AbortRequest)
        assert refused.reason == "queue_full"
        decoder.gate.set()
        assert await stack.received(5) == stack.sent

    play(tmp_path, scenario, max_queued_mm_requests=2)
