"""Decode permits as the visual server uses them: limits, order, promises, timeouts, and when permits end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.messages.cache import PermitRequest
from mmserve.messages.request import AbortRequest
from mmserve.processors.families.llava import LlavaProcessor
from mmserve.processors.interface import Views
from mmserve.visualserver.pipeline import Pipeline
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.queue.image_tasks import ImageBatch
from tests.fakes.pictures.cache import until
from tests.fakes.pictures.media import png
from tests.integration.visualserver.stack import PIXELS_NBYTES, TIMEOUT_S, Stack, play


class BlockedDecoder:
    """Makes image decoding block until ``gate`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        original = LlavaProcessor.views

        def views(processor: LlavaProcessor, data: bytes, *, whole: bool = False) -> Views:
            self.entered.set()
            assert self.gate.wait(TIMEOUT_S)
            return original(processor, data, whole=whole)

        monkeypatch.setattr(LlavaProcessor, "views", views)

    async def block(self, stack: Stack, request_id: str) -> None:
        """Send a request with one picture and wait until its decoding is blocked."""
        stack.send(request_id, png(0))
        assert await asyncio.to_thread(self.entered.wait, TIMEOUT_S)


async def _until_permits(stack: Stack, granted: int, waiting: int) -> None:
    """Wait until the cache server counts this many permits."""

    def reached() -> bool:
        snapshot = stack.table.snapshot()
        return (snapshot.num_permits, snapshot.num_permits_waiting) == (granted, waiting)

    await asyncio.to_thread(until, reached)


def _record_pipelines(monkeypatch: pytest.MonkeyPatch) -> list[Pipeline]:
    """The pipelines that run from now on."""
    pipelines: list[Pipeline] = []
    run = Pipeline.run

    async def recorded(pipeline: Pipeline) -> None:
        pipelines.append(pipeline)
        await run(pipeline)

    monkeypatch.setattr(Pipeline, "run", recorded)
    return pipelines


def _decode_when_the_next_is_queued(
    monkeypatch: pytest.MonkeyPatch, pipelines: list[Pipeline], num_images: int
) -> None:
    """Decode an image only when the next one is queued at the decoding thread. The last one has no next."""
    original, started = LlavaProcessor.views, itertools.count(1)

    def two_are_queued() -> bool:
        return sum(not future.done() for future in list(pipelines[0]._decoding)) == 2

    def views(processor: LlavaProcessor, data: bytes, *, whole: bool = False) -> Views:
        is_last = next(started) == num_images
        result = original(processor, data, whole=whole)
        until(lambda: is_last or two_are_queued())
        return result

    monkeypatch.setattr(LlavaProcessor, "views", views)


async def _until_waiting_behind(stack: Stack, pipelines: list[Pipeline], pending: int) -> None:
    """Wait until this many requests are pending, one with a permit, one with a promise, and others have asked.

    How many have asked depends on how many had arrived when the visual server asked.
    """

    def reached() -> bool:
        snapshot = stack.table.snapshot()
        asked = (snapshot.num_permits, snapshot.num_permits_waiting) in ((1, 2), (1, 3))
        return asked and len(pipelines[0]._queue) == pending

    await asyncio.to_thread(until, reached)


@pytest.mark.parametrize("limit", [1, 2])
def test_requests_that_decode_at_once_are_limited_in_number(tmp_path: Path, limit: int) -> None:
    async def scenario(stack: Stack) -> None:
        for number in range(12):
            stack.send(f"r{number}", png(number), png(100 + number))
        assert await stack.received(12) == stack.sent
        assert max(stack.tower.batches) <= 2 * limit
        await _until_permits(stack, 0, 0)
        snapshot = stack.table.snapshot()
        assert snapshot.peak_permits == limit
        assert snapshot.budgets["pixels"].used_nbytes == 0
        assert snapshot.budgets["pixels"].peak_nbytes <= limit * 2 * PIXELS_NBYTES

    play(tmp_path, scenario, max_mm_preprocess_concurrency=limit)


def test_requests_that_decode_at_once_are_limited_in_bytes(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        for number in range(8):
            stack.send(f"r{number}", png(number), png(100 + number))
        assert await stack.received(8) == stack.sent
        pixels = stack.table.snapshot().budgets["pixels"]
        assert pixels.peak_nbytes <= pixels.limit_nbytes == 5 * PIXELS_NBYTES

    play(tmp_path, scenario, pixel_budget_mb=5)


def test_a_request_with_more_images_than_a_batch_completes_under_one_permit(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.send("many", *(png(number) for number in range(7)))
        stack.send("another", png(50))
        assert await stack.received(2) == stack.sent
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1, visual_batch_size=2)


def test_a_permit_ends_when_the_encoder_has_the_pixels_not_when_they_are_encoded(tmp_path: Path) -> None:
    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("first", png(0))
        await stack.encoding()
        await _until_permits(stack, 0, 0)
        stack.send("second", png(1))
        stack.send("third", png(2))
        await _until_permits(stack, 1, 1)  # second is decoded and waits for the encoder
        stack.tower.gate.set()
        assert await stack.received(3) == stack.sent

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1, visual_batch_size=1)


def test_requests_that_arrive_one_after_another_while_the_tower_computes_are_encoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipelines = _record_pipelines(monkeypatch)

    async def until_waiting(num_images: int) -> None:
        room = pipelines[0]._encoder_room
        await asyncio.to_thread(until, lambda: room.to_decode == 2 - num_images)

    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("first", png(0), png(1))
        await stack.encoding()
        for count, number in enumerate((2, 3), start=1):
            stack.send(f"r{number}", png(number))
            await until_waiting(count)
        stack.send("more than may wait", png(4))
        await _until_permits(stack, 3, 0)
        stack.tower.gate.set()
        assert await stack.received(4) == stack.sent
        assert stack.tower.batches == [2, 2, 1]
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, visual_batch_size=2)


def test_requests_that_wait_for_a_single_permit_are_encoded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, pipelines = BlockedDecoder(monkeypatch), _record_pipelines(monkeypatch)
    _decode_when_the_next_is_queued(monkeypatch, pipelines, num_images=9)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        for number in range(1, 9):
            stack.send(f"r{number}", png(number))
        await _until_waiting_behind(stack, pipelines, 9)
        decoder.gate.set()
        assert await stack.received(9) == stack.sent
        assert stack.table.snapshot().peak_permits == 1
        assert stack.tower.batches == [1, 2, 2, 2, 2]  # none had arrived when the first one was started

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1, visual_batch_size=2)


def test_the_encoder_does_not_wait_for_a_batch_that_does_not_fit_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, pipelines = BlockedDecoder(monkeypatch), _record_pipelines(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        stack.send("pair", png(1), png(2))
        stack.send("broken", b"no picture")
        stack.send("last", png(3))
        await _until_waiting_behind(stack, pipelines, 4)
        decoder.gate.set()
        received = await stack.received(4)
        assert isinstance(received.pop("broken"), AbortRequest)
        assert set(received) == {"first", "pair", "last"}
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1, visual_batch_size=2)


def test_a_promised_request_starts_before_the_cache_server_hears_of_the_last_permits_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proceed = threading.Event()
    release_permit = MediaCacheClient.release_permit

    def delayed(client: MediaCacheClient, name: str) -> None:
        assert proceed.wait(TIMEOUT_S)
        release_permit(client, name)

    monkeypatch.setattr(MediaCacheClient, "release_permit", delayed)
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        stack.send("second", png(1))
        await _until_permits(stack, 1, 1)
        decoder.gate.set()
        assert await stack.received(2) == stack.sent
        proceed.set()
        await _until_permits(stack, 0, 0)
        assert stack.table.snapshot().peak_permits == 1

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_an_aborted_request_keeps_its_permit_until_its_decoding_thread_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "gone")
        await stack.abort("gone")
        stack.send("next", png(1))
        await _until_permits(stack, 1, 1)
        decoder.gate.set()
        assert set(await stack.received(1)) == {"next"}
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_a_request_aborted_while_waiting_for_a_permit_leaves_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        stack.send("gone", png(1))
        await _until_permits(stack, 1, 1)
        await stack.abort("gone")
        await _until_permits(stack, 1, 0)
        decoder.gate.set()
        assert set(await stack.received(1)) == {"first"}

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_a_picture_whose_decoding_fails_gives_its_permit_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(processor: LlavaProcessor, data: bytes, *, whole: bool = False) -> Views:
        raise RuntimeError("a bug in a decoder")

    monkeypatch.setattr(LlavaProcessor, "views", broken)

    async def scenario(stack: Stack) -> None:
        for number in range(3):
            stack.send(f"r{number}", png(number))
        received = await stack.received(3)
        assert {message.reason for message in received.values() if isinstance(message, AbortRequest)} == {
            "internal_error"
        }
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_waiting_is_bounded_in_number_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        for name in ("late", "too many"):
            stack.send(name, png(len(name)))
        received = await stack.received(2)
        aborts = {name: (m.reason, m.retry_after_s) for name, m in received.items() if isinstance(m, AbortRequest)}
        # No request has left the queue by then, so that the time until one does is not known.
        assert aborts == {"late": ("queue_timeout", 5.0), "too many": ("queue_full", 5.0)}
        decoder.gate.set()
        assert set(await stack.received(1)) == {"first"}
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1, max_queued_mm_requests=2, mm_queue_timeout=0.3)


def test_decoded_pixels_are_freed_when_they_are_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[weakref.ref[npt.NDArray[np.uint8]]] = []
    original = LlavaProcessor.views

    def views(processor: LlavaProcessor, data: bytes, *, whole: bool = False) -> Views:
        result = original(processor, data, whole=whole)
        decoded.append(weakref.ref(result.pixels))
        return result

    monkeypatch.setattr(LlavaProcessor, "views", views)

    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("r", png(0), png(1))
        await stack.encoding()
        await _until_permits(stack, 0, 0)
        stack.tower.gate.set()
        assert await stack.received(1) == stack.sent
        gc.collect()
        assert [reference() is None for reference in decoded] == [True, True]

    play(tmp_path, scenario)


def test_a_server_that_stops_gives_back_permits_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BlockedDecoder(monkeypatch)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        stack.send("second", png(1))
        stack.send("third", png(2))
        await _until_permits(stack, 1, 2)
        stack.server.cancel()
        await asyncio.gather(stack.server, return_exceptions=True)
        await _until_permits(stack, 1, 1)  # second was promised first's permit, third had asked
        decoder.gate.set()

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_a_server_that_stops_does_not_wait_for_room_in_the_encoder(tmp_path: Path) -> None:
    def decoding_threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.startswith("decode")]

    async def scenario(stack: Stack) -> None:
        stack.tower.gate.clear()
        stack.send("first", png(0))
        await stack.encoding()
        stack.send("second", png(1))
        await _until_permits(stack, 1, 0)
        assert decoding_threads()
        stack.server.cancel()
        await asyncio.gather(stack.server, return_exceptions=True)
        await asyncio.to_thread(until, lambda: not decoding_threads())
        stack.tower.gate.set()

    play(tmp_path, scenario, visual_batch_size=1)


def test_a_server_that_waits_for_a_permit_is_not_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process without progress counts as stuck, and waiting for a permit may take minutes."""
    pipelines = _record_pipelines(monkeypatch)

    async def scenario(stack: Stack) -> None:
        assert stack.client.acquire_permits([PermitRequest("another's", 1, 0.0)], wait_s=5).granted == ("another's",)
        stack.tower.gate.clear()
        stack.send("r", png(0))
        await _until_permits(stack, 1, 1)
        (pipeline,) = pipelines
        assert not pipeline.busy
        stack.client.release_permit("another's")
        await stack.encoding()
        assert pipeline.busy
        stack.tower.gate.set()
        assert await stack.received(1) == stack.sent
        assert not pipeline.busy

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)


def test_a_batch_behind_another_is_not_decoded_when_its_requests_are_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = BlockedDecoder(monkeypatch)
    decoded, num_batches, second_batch = [], 0, threading.Event()
    blocked_views, next_batch = LlavaProcessor.views, BatchQueue.next_batch

    def views(processor: LlavaProcessor, data: bytes, *, whole: bool = False) -> Views:
        decoded.append(bytes(data))
        return blocked_views(processor, data, whole=whole)

    def counted(queue: BatchQueue, *, promised_only: bool, room: int) -> ImageBatch | None:
        nonlocal num_batches
        if (batch := next_batch(queue, promised_only=promised_only, room=room)) is not None:
            num_batches += 1
            if num_batches == 2:
                second_batch.set()
        return batch

    monkeypatch.setattr(LlavaProcessor, "views", views)
    monkeypatch.setattr(BatchQueue, "next_batch", counted)

    async def scenario(stack: Stack) -> None:
        await decoder.block(stack, "first")
        stack.send("gone", png(1))
        assert await asyncio.to_thread(second_batch.wait, TIMEOUT_S)
        await stack.abort("gone")
        decoder.gate.set()
        assert set(await stack.received(1)) == {"first"}
        stack.send("next", png(2))
        assert set(await stack.received(1)) == {"next"}
        assert decoded == [png(0), png(2)]
        await _until_permits(stack, 0, 0)

    play(tmp_path, scenario, max_mm_preprocess_concurrency=1)
