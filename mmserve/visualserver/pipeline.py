"""Moves requests through decode permits, decoding and the vision tower. Lives on the event loop.

Four stages run at the same time: receiving messages, acquiring decode permits, decoding one batch, encoding one batch.
Blocking work has threads of its own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from mmserve.messages.request import AbortRequest, EncoderMessage, WorkerDied
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.retry_after import Turnover
from mmserve.visualserver.batches.encode import Encoder, EncoderBatch
from mmserve.visualserver.batches.encoder_room import EncoderRoom
from mmserve.visualserver.batches.image_decode import DecodedBatch, ImageDecoder
from mmserve.visualserver.images import Outcome, item_ids
from mmserve.visualserver.offload import Offload
from mmserve.visualserver.queue.batch_queue import Answer, BatchQueue
from mmserve.visualserver.queue.image_tasks import ImageBatch
from mmserve.visualserver.queue.pending_request import PendingRequest
from mmserve.visualserver.queue.permit_stage import PermitStage
from mmserve.visualserver.queue.permits import PermitClient

_RETRY_AFTER_S = 5.0
"""Before any request has left the queue."""


class Pipeline:
    """``receive`` takes messages; ``run`` works until cancelled; ``emit`` sends a message to the router.

    ``max_encoder_images``: limit of images whose pixels the encoder has, waiting or being encoded. No batch is larger.
    ``begin``: what the encoder's thread does first.
    """

    def __init__(
        self,
        queue: BatchQueue,
        permits: PermitClient,
        decoder: ImageDecoder,
        encoder: Encoder,
        metrics: MetricsClient,
        emit: Callable[[Answer], object],
        max_encoder_images: int,
        offload: Offload | None = None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        self._queue = queue
        self._offload = offload
        if offload is not None:
            offload.finish, offload.on_change = self._finish_offloaded, self._on_change
        self._turnover = Turnover(_RETRY_AFTER_S)
        """Of client requests in the queue."""
        self._permits = PermitStage(queue, permits, self._refuse, self._waits_for_decoder, self._on_change)
        self._decoder = decoder
        self._encoder = encoder
        self._metrics = metrics
        self._emit = emit
        self._decode_thread = ThreadPoolExecutor(1, "decode")
        self._encode_thread = ThreadPoolExecutor(1, "encode", initializer=begin)
        self._wake_decode = asyncio.Event()
        self._wake_encode = asyncio.Event()
        self._decoding: dict[Future[DecodedBatch], ImageBatch] = {}
        """Batches of the decoding thread: the one being decoded, and at most one behind."""
        self._max_encoder_images = max_encoder_images
        self._encoder_room = EncoderRoom(max_encoder_images)
        self._to_encode: list[EncoderBatch] = []
        """Decoded batches for the next call of the tower."""
        self._merge_candidate: Future[DecodedBatch] | None = None
        """The future of a batch in ``_decoding``. The encoder waits for it, and then encodes that batch together with
        ``_to_encode``. None: the encoder waits for no batch."""
        self._encoding = False
        self.num_finished = 0
        """Grows with every batch that ends; the supervisor sees a stuck tower by it standing still."""

    @property
    def busy(self) -> bool:
        """True if something is being computed. Waiting for a permit does not count: it may take long."""
        return bool(self._decoding or self._encoder_room.has_waiting or self._to_encode or self._encoding)

    @property
    def is_overdue(self) -> bool:
        """True if the decoding of an image takes so long that it is stuck, although it computes."""
        return self._decoder.is_overdue

    def receive(self, message: EncoderMessage) -> None:
        """Hold a request until its images are encoded, or it is aborted, or its HTTP worker dies."""
        if isinstance(message, WorkerDied):
            self._queue.drop_orphans(message)
        elif isinstance(message, AbortRequest):
            self._queue.drop(message.id)
        else:
            for answer in self._queue.add(message, time.monotonic()):
                self._refuse(answer, 1) if isinstance(answer, AbortRequest) else self._emit(answer)
        self._on_change()

    async def run(self) -> None:
        """Run all stages until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._permits.run())
            tasks.create_task(self._decode_batches())
            tasks.create_task(self._encode_batches())
            if self._offload is not None:
                tasks.create_task(self._offload.run())

    def close(self) -> None:
        """Give up all permits asked for and stop the threads, without waiting for running work."""
        self._permits.close()
        self._decoder.close()
        if self._offload is not None:
            self._offload.close()
        for thread in (self._decode_thread, self._encode_thread):
            thread.shutdown(wait=False, cancel_futures=True)

    def _refuse(self, abort: AbortRequest, num_ahead: int) -> None:
        """Abort a request that can be sent again when ``num_ahead`` client requests have left the queue."""
        self._emit(msgspec.structs.replace(abort, retry_after_s=self._turnover.seconds_until_free(num_ahead)))

    # Decoding

    async def _decode_batches(self) -> None:
        async with asyncio.TaskGroup() as running:
            while True:
                batch = await self._next_batch()
                future = self._decode_thread.submit(self._decoder.decode, batch.images)
                self._decoding[future] = batch
                running.create_task(self._after_decoding(future))

    async def _next_batch(self) -> ImageBatch:
        """The next batch to decode.

        While the decoding thread has a batch, it gets at most one more, and only when the promised request may start:
        its images are then decoded without a round trip through the event loop. At most a batch size of images is being
        decoded or waits for room in the encoder.
        """
        while (batch := self._batch_within_room()) is None:
            self._wake_decode.clear()
            await self._wake_decode.wait()
        # A request that shares an image with this batch may now ask for a permit for its other images.
        self._permits.wake()
        now_s = time.monotonic()
        for pending in batch.first_started:
            pending.started_s = now_s
            self._metrics.add("mm_queue_seconds", now_s - pending.received_s)
        return batch

    def _batch_within_room(self) -> ImageBatch | None:
        room = self._encoder_room.to_decode - sum(len(batch.images) for batch in self._decoding.values())
        if len(self._decoding) > 1 or room < 1:
            return None
        return self._queue.next_batch(promised_only=bool(self._decoding), room=room)

    def _waits_for_decoder(self, pending: PendingRequest) -> bool:
        """True if a batch that starts the request is queued at the decoding thread."""
        return any(
            pending in batch.first_started and not _has_started(future) for future, batch in self._decoding.items()
        )

    async def _after_decoding(self, future: Future[DecodedBatch]) -> None:
        """Wait until the batch is decoded or cancelled. Its pixels then wait for the encoder."""
        done = asyncio.wrap_future(future)
        try:
            await asyncio.wait((done,))
        finally:
            batch = self._decoding.pop(future)
            self._wake_encode.set()
        if done.cancelled():
            return
        decoded = done.result()
        for pending in batch.first_started:
            pending.decoded_s = time.monotonic()
        for seconds in decoded.seconds:
            self._metrics.add("mm_decode_seconds", seconds)
        if decoded.images:
            self._encoder_room.add(decoded, batch)
        self._finish(decoded.outcomes)
        self._pixels_handed_over(decoded.outcomes)
        self._fill_encoder()

    def _fill_encoder(self) -> None:
        """Hand over all batches for which the encoder has room."""
        while (ready := self._encoder_room.take()) is not None:
            images = item_ids(ready[0].images)
            self._hand_to_encoder(*ready)
            self._pixels_handed_over(images)

    def _hand_to_encoder(self, decoded: DecodedBatch, batch: ImageBatch) -> None:
        """Queue the pixels for the tower, and choose whether the tower waits for the next batch.

        With few permits, requests that arrived together are decoded one after another. The tower still encodes two
        such batches in one call if both fit, as it would without a limit on permits.
        """
        next_future, next_batch = next(iter(self._decoding.items()), (None, None))
        room = self._max_encoder_images - len(decoded.images)
        fits = next_batch is not None and len(next_batch.images) <= room
        self._merge_candidate = next_future if batch.others_waiting and fits and not self._to_encode else None
        self._to_encode.append(self._encoder.take(decoded))

    def _pixels_handed_over(self, images: Iterable[int]) -> None:
        """The encoder has the pixels of these item ids, or there are none: permits may end."""
        self._queue.permits.decoded(images)
        self._on_change()

    # Encoding

    async def _encode_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batches = await self._next_encoder_batches()
            self._encoding = True
            encoded = await loop.run_in_executor(self._encode_thread, self._encoder.encode, batches)
            self._encoding = False
            self._encoder_room.release(len(encoded.outcomes))
            self._fill_encoder()
            self._metrics.add("mm_encode_seconds", encoded.seconds)
            self._metrics.add("mm_encode_batch_size", len(encoded.outcomes))
            self._metrics.add("mm_copied_bytes", encoded.written_nbytes, "embed", "")
            self._metrics.add("mm_images_encoded", _count_encoded(encoded.outcomes))
            if self._offload is not None:
                self._offload.encoded_here(len(encoded.outcomes), encoded.seconds)
            self._finish(encoded.outcomes)

    async def _next_encoder_batches(self) -> list[EncoderBatch]:
        while not self._to_encode or self._merge_candidate in self._decoding:
            self._wake_encode.clear()
            await self._wake_encode.wait()
        batches, self._to_encode = self._to_encode, []
        return batches

    def _finish_offloaded(self, outcomes: Mapping[int, Outcome]) -> None:
        """Of images that an encoder on another machine has encoded, or that are lost."""
        self._metrics.add("mm_images_encoded", _count_encoded(outcomes))
        self._metrics.add("mm_images_offloaded", _count_encoded(outcomes))
        self._finish(outcomes)

    # All stages

    def _finish(self, outcomes: Mapping[int, Outcome]) -> None:
        """Tell the router which images are encoded, and which requests are aborted."""
        for message in self._queue.finish(outcomes, time.monotonic()):
            self._emit(message)
        self.num_finished += 1
        self._metrics.add("mm_images_failed", len(outcomes) - _count_encoded(outcomes))
        self._on_change()

    def _on_change(self) -> None:
        """After any change of the queue: give back permits, cancel work without waiters, wake all stages."""
        for future, batch in self._decoding.items():
            # has_waiters needs images that are in the queue. They leave it after their future is done, in _finish.
            if not future.done() and not self._queue.has_waiters(batch.images) and future.cancel():
                self._queue.cancel(batch.images)
        self._permits.release_unwanted()
        if self._offload is not None:
            self._offload.start()
        self._wake_decode.set()
        self._wake_encode.set()
        self._turnover.hold(len(self._queue))
        self._metrics.add("mm_encoder_requests_waiting", len(self._queue))
        self._permits.wake()


def _has_started(future: Future[DecodedBatch]) -> bool:
    return future.running() or future.done()


def _count_encoded(outcomes: Mapping[int, Outcome]) -> int:
    return sum(outcome.state == "encoded" for outcome in outcomes.values())
