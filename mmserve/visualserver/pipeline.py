"""Batches through decoding and the tower, one batch in each at a time, while messages keep coming in.

Lives on the event loop; what blocks runs in two threads of its own. Knows no sockets: ``emit`` sends on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from mmserve.messages.request import AbortRequest, EngineInbound
from mmserve.metrics.client import MetricsClient
from mmserve.visualserver.batcher import Batch, Batcher, Outcome
from mmserve.visualserver.decoding import Decoded, Decoder
from mmserve.visualserver.encoder import Encoder


class Pipeline:
    """``receive`` takes every message; ``run`` works until cancelled. One batch is decoded while one is encoded."""

    def __init__(
        self,
        batcher: Batcher,
        decoder: Decoder,
        encoder: Encoder,
        metrics: MetricsClient,
        emit: Callable[[EngineInbound], object],
    ) -> None:
        self._batcher = batcher
        self._decoder = decoder
        self._encoder = encoder
        self._metrics = metrics
        self._emit = emit
        self._arrived = asyncio.Event()
        self._decoded: asyncio.Queue[Decoded] = asyncio.Queue(maxsize=1)
        self._threads = (ThreadPoolExecutor(1, "decode"), ThreadPoolExecutor(1, "encode"))
        self.num_finished = 0
        """Batches and images that got somewhere: a stuck tower is seen by it standing still."""

    @property
    def busy(self) -> bool:
        return len(self._batcher) > 0

    def receive(self, message: EngineInbound) -> None:
        """Hold a request until its images are encoded; an abort ends it here and goes on to the router."""
        if isinstance(message, AbortRequest):
            self._batcher.drop(message.id)
            self._emit(message)
        else:
            for complete in self._batcher.add(message, time.monotonic()):
                self._emit(complete)
        self._metrics.add("mm_encoder_requests_waiting", len(self._batcher))
        self._arrived.set()

    async def run(self) -> None:
        """Decode and encode for ever, side by side."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._decode_batches())
            tasks.create_task(self._encode_batches())

    def close(self) -> None:
        """Waits for nothing: what is being computed is of no use any more."""
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _decode_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_batch()
            decoded = await loop.run_in_executor(self._threads[0], self._decoder.decode, batch.images)
            self._count_decoded(decoded)
            self._finish(decoded.outcomes)
            if decoded.images:
                await self._decoded.put(decoded)

    async def _encode_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            decoded = await self._decoded.get()
            encoded = await loop.run_in_executor(self._threads[1], self._encoder.encode, decoded)
            self._metrics.add("mm_encode_seconds", encoded.seconds)
            self._metrics.add("mm_encode_batch_size", len(decoded.images))
            self._metrics.add("mm_copied_bytes", encoded.written_nbytes, "embed")
            self._metrics.add("mm_images_encoded", _count(encoded.outcomes, "encoded"))
            self._finish(encoded.outcomes)

    async def _next_batch(self) -> Batch:
        while (batch := self._batcher.next_batch()) is None:
            self._arrived.clear()
            self._metrics.flush()
            await self._arrived.wait()
        now_s = time.monotonic()
        for held in batch.begun:
            self._metrics.add("mm_queue_seconds", now_s - held.received_s)
        self._metrics.add("mm_decoding", batch.num_requests)
        return batch

    def _count_decoded(self, decoded: Decoded) -> None:
        for seconds in decoded.seconds:
            self._metrics.add("mm_decode_seconds", seconds)
        self._metrics.add("mm_decoding", 0)

    def _finish(self, outcomes: Mapping[int, Outcome]) -> None:
        for message in self._batcher.finish(outcomes):
            self._emit(message)
        self.num_finished += 1
        self._metrics.add("mm_images_failed", len(outcomes) - _count(outcomes, "encoded"))
        self._metrics.add("mm_encoder_requests_waiting", len(self._batcher))
        self._arrived.set()


def _count(outcomes: Mapping[int, Outcome], state: str) -> int:
    return sum(outcome.state == state for outcome in outcomes.values())
