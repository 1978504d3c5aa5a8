"""All that one request holds of its HTTP worker: a place among those in flight, and the bytes that it brought.

One object from the request's first byte on, owned by the request's task once there is one; whoever owns it releases
it once. Leases in the arena are scopes inside that task and not here.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext

from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.reservations import Reservation, Reservations


class RequestResources:
    """Raises Unavailable or Overloaded when the request may not begin."""

    def __init__(self, gate: AdmissionControl, bodies: Reservations, fetches: Reservations) -> None:
        self._bodies = bodies
        self._fetches = fetches
        self._body: Reservation | None = None
        self._fetched: Reservation | None = None
        self._stack = ExitStack()
        self._stack.enter_context(gate.admit())

    @property
    def short_nbytes(self) -> int:
        """A body of so many bytes never waits."""
        return self._bodies.short_nbytes

    async def receive(self, nbytes: int, connected: AbstractAsyncContextManager[None]) -> None:
        """Before more of a body is read than there was room for: room for so many bytes in all. Raises TooLarge or
        Unavailable, and what ``connected`` raises: it is entered for as long as there is something to wait for.

        Nobody waits for more while holding some, or two who did could wait for each other.
        """
        if self._body is not None:
            self._body.release()
        async with connected if self._bodies.must_wait(nbytes) else nullcontext():
            reserved = await self._bodies.reserve(nbytes)
        self._body = self._stack.enter_context(reserved)

    async def fetch(self, nbytes: int) -> None:
        """Before images of so many bytes in all are fetched. Raises TooLarge or Unavailable.

        A budget of its own: those who wait for it hold their bodies, which nobody who fetches waits for.
        """
        self._fetched = self._stack.enter_context(await self._fetches.reserve(nbytes))

    def keep(self, body_nbytes: int, fetched_nbytes: int = 0) -> None:
        """What is left of the body and of what was fetched: smaller forms of them."""
        if self._body is not None:
            self._body.shrink(body_nbytes)
        if self._fetched is not None:
            self._fetched.shrink(fetched_nbytes)

    def release(self) -> None:
        """Everything; again does no harm."""
        self._stack.close()
