"""One question to Ray's router: where does a request go, and for how long may a replica keep silent. No Ray in it.

The front asks in its event loop. Ray's router, which runs in a thread of its own, offers one replica after the other to
Ray, which takes the first that has room and then waits for that replica's word, without a limit of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from mmserve.cluster.scale.policy import Choice, Want


class ReplicaSilent(Exception):
    """``replica`` was chosen and has said nothing for too long."""

    def __init__(self, replica: str) -> None:
        super().__init__(f"{replica} is silent")
        self.replica = replica


class Asked:
    """``exclude``: replicas that are offered last, those with smaller numbers before others. ``within_s``: for the one
    that was offered last to confirm. ``choice``: that one, which Ray has taken if it has taken any."""

    def __init__(self, want: Want, exclude: Mapping[str, int], within_s: float) -> None:
        self.want, self.exclude = want, exclude
        self.choice: Choice | None = None
        self._within_s = within_s
        self._loop = asyncio.get_running_loop()
        self._limit: asyncio.Timeout | None = None

    def offer(self, choice: Choice) -> None:
        """In any thread: this replica is offered to Ray now."""
        self.choice = choice
        self._restart(self._within_s)

    def offered_all(self) -> None:
        """In any thread: none has had room, and Ray waits until one has."""
        self._restart(None)

    @contextlib.asynccontextmanager
    async def limited(self) -> AsyncIterator[None]:
        """The wait for an answer. Raises ReplicaSilent. No limit while nothing is offered, as without replicas."""
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        except TimeoutError:
            if self.choice is None or self._limit is None or not self._limit.expired():
                raise  # Ray's own
            raise ReplicaSilent(self.choice.replica) from None
        finally:
            self._limit = None

    def _restart(self, within_s: float | None) -> None:
        if self._limit is not None:  # otherwise Ray is still at a question that was given up
            self._loop.call_soon_threadsafe(self._set, within_s)

    def _set(self, within_s: float | None) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None if within_s is None else self._loop.time() + within_s)
