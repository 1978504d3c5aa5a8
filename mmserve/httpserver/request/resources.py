"""What one request holds of its HTTP worker: a place in flight, and memory for its body and its fetched images."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.reservations import Reservation, Reservations


class RequestResources:
    """Made before the request's body is read; owned by the request's task once there is one. The owner releases it.

    Leases in the arena are not part of it: they are scopes inside the request's task.
    Raises Unavailable or Overloaded when the request is not admitted.
    """

    def __init__(self, admission: AdmissionControl, body_memory: Reservations, fetch_memory: Reservations) -> None:
        self._body_memory = body_memory
        self._fetch_memory = fetch_memory
        self._body: Reservation | None = None
        self._fetched: Reservation | None = None
        self.images_are_read = False
        """Set by the request's task."""
        self._stack = ExitStack()
        self._stack.enter_context(admission.admit())

    @property
    def short_nbytes(self) -> int:
        """Bodies up to this size never wait for memory."""
        return self._body_memory.short_nbytes

    async def reserve_body(
        self, nbytes: int, until_disconnect: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """Reserve memory for a body of ``nbytes`` in all, in place of an earlier, smaller reservation.

        ``until_disconnect`` is entered only if there is something to wait for. Raises what it raises, and TooLarge or
        Unavailable.
        """
        # Release the current reservation before waiting for a larger one; two requests that each held part of the
        # budget could deadlock.
        if self._body is not None:
            self._body.release()
        if self._body_memory.must_wait(nbytes):
            async with until_disconnect():
                reserved = await self._body_memory.reserve(nbytes)
        else:
            reserved = await self._body_memory.reserve(nbytes)
        self._body = self._stack.enter_context(reserved)

    async def reserve_fetch(self, nbytes: int) -> None:
        """Reserve memory for ``nbytes`` of images in all, before they are fetched. Raises TooLarge or Unavailable.

        A separate budget: a request waits for it while it holds its body, so it must not be what bodies wait for.
        """
        self._fetched = self._stack.enter_context(await self._fetch_memory.reserve(nbytes))

    def enter(self, context: AbstractContextManager[None]) -> None:
        """Enter a context that lasts as long as the request. Raises what it raises."""
        self._stack.enter_context(context)

    def answer_memory(self) -> Reservation:
        """An empty reservation for the answer, which outlives this object; whoever reads the answer releases it."""
        return self._body_memory.empty()

    def shrink(self, body_nbytes: int) -> None:
        """Give back memory down to the body's length."""
        if self._body is not None:
            self._body.shrink(body_nbytes)

    def shrink_fetched(self, nbytes: int) -> None:
        """Give back memory down to what the fetched images take."""
        if self._fetched is not None:
            self._fetched.shrink(nbytes)

    def hold(self, body_nbytes: int) -> None:
        """Reserve what is kept in place of the body: its texts may take more memory than the body, or less.

        Raises Unavailable if that is more than is free.
        """
        if self._body is not None:
            self._body.resize(body_nbytes)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self._stack.close()
