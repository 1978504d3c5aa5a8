"""Asks for decode permits for the requests in the queue, and ends those that wait too long. Lives on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mmserve.messages.request import AbortRequest
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.queue.pending_request import PendingRequest, PermitCandidate
from mmserve.visualserver.queue.permits import PermitClient


class PermitStage:
    """``run`` works until cancelled. Callbacks: ``refuse`` sends an abort and says how many client requests are ahead;
    ``waits_for_decoder(pending)`` is true if a batch of the request has been handed to the decoder, which has not begun
    it; ``on_change`` is called after every change of the queue."""

    def __init__(
        self,
        queue: BatchQueue,
        permits: PermitClient,
        refuse: Callable[[AbortRequest, int], None],
        waits_for_decoder: Callable[[PendingRequest], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._permits = permits
        self._refuse = refuse
        self._waits_for_decoder = waits_for_decoder
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._asking: list[PendingRequest] = []
        """Requests for which the permit client is waiting."""
        self._promise_timer: asyncio.TimerHandle | None = None
        """Deadline of the promised request. Has no effect once its images are being decoded."""

    async def run(self) -> None:
        while True:
            candidates = await self._next_candidates()
            self._asking = [candidate.pending for candidate in candidates]
            wait_s = self._permits.remaining_s(candidates[0].pending.received_s)
            reply = await self._permits.acquire([candidate.permit_request for candidate in candidates], wait_s)
            asked, self._asking = self._asking, []
            for pending in asked:
                if pending.permit_name in reply.granted:
                    self._queue.grant(pending)
                elif pending.permit_name == reply.promised:
                    self._promise(pending)
                elif self._queue.needs_permit(pending) and not self._permits.remaining_s(pending.received_s):
                    self._time_out(pending)
            self._on_change()

    def wake(self) -> None:
        """There may be requests to ask for."""
        self._wake.set()

    def release_unwanted(self) -> None:
        """Give back permits that have ended, and those asked for requests that have left the queue."""
        for pending in self._asking:
            if not self._queue.is_pending(pending):
                self._permits.release(pending.permit_name)
        for permit_name in self._queue.permits.take_ended():
            self._permits.release(permit_name)

    def close(self) -> None:
        """Give up all permits asked for."""
        promised = self._queue.promised
        waiting = self._asking if promised is None else [*self._asking, promised]
        self._permits.close(pending.permit_name for pending in waiting)

    async def _next_candidates(self) -> list[PermitCandidate]:
        while not (candidates := self._queue.permit_candidates()):
            self._wake.clear()
            await self._wake.wait()
        return candidates

    def _promise(self, pending: PendingRequest) -> None:
        """Start the timer of the promised request.

        The timer of an earlier promised request is cancelled: only one request is promised at a time, so the earlier
        one has its permit by now and is being decoded.
        """
        self._queue.promise(pending)
        if self._promise_timer is not None:
            self._promise_timer.cancel()
        loop = asyncio.get_running_loop()
        self._promise_timer = loop.call_later(
            self._permits.remaining_s(pending.received_s), self._time_out_promised, pending
        )

    def _time_out_promised(self, pending: PendingRequest) -> None:
        """Abort the request unless its decoding has started."""
        waits = self._queue.promised is pending and self._queue.needs_permit(pending)
        if waits or (self._queue.is_pending(pending) and self._waits_for_decoder(pending)):
            self._time_out(pending)
            self._on_change()

    def _time_out(self, pending: PendingRequest) -> None:
        message = f"its images did not get their turn within {self._permits.timeout_s:g} s"
        # In the time of one request it would not have got its turn: all that wait are ahead of its next try.
        self._refuse(self._queue.abort(pending, "queue_timeout", message), len(self._queue))
