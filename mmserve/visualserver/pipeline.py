"""Requests to their turns, batches through decoding and the tower, one batch in each at a time, while messages keep
coming in. Lives on the event loop; what blocks runs in threads of its own. Knows no sockets: ``emit`` sends on.

The decoding thread waits for room with the encoder itself, so that whose turn is next is decoded without a pause.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from mmserve.messages.request import AbortRequest, EngineInbound
from mmserve.metrics.client import MetricsClient
from mmserve.visualserver.batch_queue import Batch, BatchQueue, Claim, Image, Outcome, PendingRequest, item_ids
from mmserve.visualserver.encode import Encoder, EncoderBatch
from mmserve.visualserver.image_decode import DecodedBatch, ImageDecoder
from mmserve.visualserver.permit_calls import PermitClient


class Pipeline:
    """``receive`` takes every message; ``run`` works until cancelled. One batch is decoded while one is encoded.

    ``encoder_images``: most whose pixels the encoder has, waiting or being encoded; no batch is larger.
    """

    def __init__(
        self,
        batcher: BatchQueue,
        turns: PermitClient,
        decoder: ImageDecoder,
        encoder: Encoder,
        metrics: MetricsClient,
        emit: Callable[[EngineInbound], object],
        encoder_images: int,
    ) -> None:
        self._batcher = batcher
        self._turns = turns
        self._asking: list[PendingRequest] = []
        self._decoder = decoder
        self._encoder = encoder
        self._metrics = metrics
        self._emit = emit
        self._arrived = asyncio.Event()
        self._turn_came = asyncio.Event()
        self._threads = (ThreadPoolExecutor(1, "decode"), ThreadPoolExecutor(1, "encode"))
        self._line: dict[Future[DecodedBatch], Batch] = {}
        """With the decoding thread: the batch that it decodes, or cannot hand over yet, and at most one behind it."""
        self._deadline: asyncio.TimerHandle | None = None
        """Of who follows; without effect once that is being decoded."""
        self._encoder_images = encoder_images
        self._encoder_room = threading.Semaphore(encoder_images)
        """Images. EncoderBatch by the decoding thread with each hand-over, given back when they are encoded."""
        self._taken_over: list[EncoderBatch] = []
        """The encoder's, to be encoded together."""
        self._company: Future[DecodedBatch] | None = None
        """To be encoded together with those taken over, while it is in the line."""
        self._pixels_came = asyncio.Event()
        self._encoding = False
        self.num_finished = 0
        """Batches and images that got somewhere: a stuck tower is seen by it standing still."""

    @property
    def busy(self) -> bool:
        """Is anything being computed? Who waits for a turn may do so long, and nothing is stuck here."""
        return bool(self._line or self._taken_over or self._encoding)

    def receive(self, message: EngineInbound) -> None:
        """Hold a request until its images are encoded; an abort ends it here and goes on to the router."""
        if isinstance(message, AbortRequest):
            self._batcher.drop(message.id)
            self._emit(message)
        else:
            for complete in self._batcher.add(message, time.monotonic()):
                self._emit(complete)
        self._changed()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take_turns())
            tasks.create_task(self._begin_batches())
            tasks.create_task(self._encode_batches())

    def close(self) -> None:
        """Waits for nothing: what is being computed is of no use any more."""
        following = self._batcher.following
        self._turns.close(self._asking if following is None else [*self._asking, following])
        for threads in self._threads:
            threads.shutdown(wait=False, cancel_futures=True)
        self._encoder_room.release(self._encoder_images)  # a thread that waited for it would keep the process alive

    async def _take_turns(self) -> None:
        """For the oldest requests first."""
        while True:
            claims = await self._next_claims()
            self._asking = [claim.held for claim in claims]
            reply = await self._turns.come(claims)
            asked, self._asking = self._asking, []
            for held in asked:
                if held.turn in reply.come:
                    self._batcher.begin(held)
                elif held.turn == reply.following:
                    self._follow(held)
                elif self._batcher.holds(held) and not self._turns.left_s(held):
                    self._late(held)
            self._changed()

    def _follow(self, held: PendingRequest) -> None:
        """Who followed before is being decoded by now, so one deadline at a time is enough, and keeps one request."""
        self._batcher.follow(held)
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self._turns.left_s(held), self._still_follows, held)

    def _still_follows(self, held: PendingRequest) -> None:
        in_line = any(held in batch.begun and not _has_begun(future) for future, batch in self._line.items())
        if self._batcher.holds(held) and (in_line or self._batcher.following is held):
            self._late(held)
            self._changed()

    def _late(self, held: PendingRequest) -> None:
        message = f"its images did not get their turn within {self._turns.patience_s:g} s"
        self._emit(self._batcher.give_up(held, "queue_timeout", message))

    async def _begin_batches(self) -> None:
        async with asyncio.TaskGroup() as begun:
            while True:
                batch = await self._next_batch()
                future = self._threads[0].submit(self._decode_and_hand_over, batch.images)
                self._line[future] = batch
                begun.create_task(self._work(future))

    async def _work(self, future: Future[DecodedBatch]) -> None:
        """One batch from its bytes to its rows, unless it is taken out of the line."""
        ended = asyncio.wrap_future(future)
        try:
            await asyncio.wait((ended,))
        finally:
            batch = self._line.pop(future)
            self._pixels_came.set()
        if ended.cancelled():
            return
        decoded = ended.result()
        for seconds in decoded.seconds:
            self._metrics.add("mm_decode_seconds", seconds)
        if decoded.images:
            self._take_over(decoded, batch)
        self._finish(decoded.outcomes)
        self._taken((*decoded.outcomes, *item_ids(decoded.images)))

    def _take_over(self, decoded: DecodedBatch, batch: Batch) -> None:
        """With few turns, who waited already when these were begun could not be decoded with them; the first of those
        that fits is encoded with them, as it would be without a gate."""
        behind, following = next(iter(self._line.items()), (None, None))
        room = self._encoder_images - len(decoded.images)
        fits = following is not None and len(following.images) <= room
        self._company = behind if batch.others_wait and fits and not self._taken_over else None
        self._taken_over.append(self._encoder.take(decoded))

    def _decode_and_hand_over(self, images: Sequence[Image]) -> DecodedBatch:
        """In the decoding thread, which begins nothing else before the encoder has room for these."""
        decoded = self._decoder.decode(images)
        for _ in decoded.images:
            self._encoder_room.acquire()
        return decoded

    async def _encode_batches(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._next_taken_over()
            self._encoding = True
            encoded = await loop.run_in_executor(self._threads[1], self._encoder.encode, batch)
            self._encoding = False
            self._encoder_room.release(len(encoded.outcomes))
            self._metrics.add("mm_encode_seconds", encoded.seconds)
            self._metrics.add("mm_encode_batch_size", len(encoded.outcomes))
            self._metrics.add("mm_copied_bytes", encoded.written_nbytes, "embed", "")
            self._metrics.add("mm_images_encoded", _count(encoded.outcomes, "encoded"))
            self._finish(encoded.outcomes)

    async def _next_taken_over(self) -> list[EncoderBatch]:
        while not self._taken_over or self._company in self._line:
            self._pixels_came.clear()
            await self._pixels_came.wait()
        taken, self._taken_over = self._taken_over, []
        return taken

    async def _next_claims(self) -> list[Claim]:
        while not (claims := self._batcher.claims()):
            self._metrics.flush()
            self._arrived.clear()
            await self._arrived.wait()
        return claims

    async def _next_batch(self) -> Batch:
        while len(self._line) > 1 or (batch := self._batcher.next_batch(ahead=bool(self._line))) is None:
            self._turn_came.clear()
            await self._turn_came.wait()
        self._arrived.set()  # who shares an image of the batch may claim its others
        now_s = time.monotonic()
        for held in batch.begun:
            self._metrics.add("mm_queue_seconds", now_s - held.received_s)
        return batch

    def _taken(self, images: Iterable[int]) -> None:
        """Their pixels are the encoder's, or there are none: turns may be over."""
        self._batcher.turns.taken(images)
        self._changed()

    def _finish(self, outcomes: Mapping[int, Outcome]) -> None:
        for message in self._batcher.finish(outcomes):
            self._emit(message)
        self.num_finished += 1
        self._metrics.add("mm_images_failed", len(outcomes) - _count(outcomes, "encoded"))
        self._changed()

    def _changed(self) -> None:
        """Whatever happened: there may be a turn to ask for, to begin, or to give back."""
        for held in self._asking:
            if not self._batcher.holds(held):
                self._turns.end(held.turn)
        for future, batch in self._line.items():
            # None of it is done, so what nobody wants is still known to the batcher.
            if not future.done() and not self._batcher.wanted(batch.images) and future.cancel():
                self._batcher.withdraw(batch.images)
        for name in self._batcher.turns.ended():
            self._turns.end(name)
        self._turn_came.set()
        self._pixels_came.set()
        self._metrics.add("mm_encoder_requests_waiting", len(self._batcher))
        self._arrived.set()


def _has_begun(future: Future[DecodedBatch]) -> bool:
    return future.running() or future.done()


def _count(outcomes: Mapping[int, Outcome], state: str) -> int:
    return sum(outcome.state == state for outcome in outcomes.values())
