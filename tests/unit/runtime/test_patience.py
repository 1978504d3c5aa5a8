"""Another try where it can help, and none where it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from mmserve.runtime.patience import Reply, patiently


class Clock:
    """Time that passes in ``asyncio.sleep`` alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    async def _sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.pauses.append(seconds)

    def tries(self, replies: Iterable[tuple[Reply, float] | ConnectionError], patience_s: float = 100) -> Reply:
        remaining = iter(replies)

        async def attempt() -> tuple[Reply, float]:
            reply = next(remaining)
            if isinstance(reply, ConnectionError):
                raise reply
            return reply

        return asyncio.run(patiently(attempt, patience_s, ConnectionError, now=lambda: self.now_s))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


FULL = Reply(429, b"full"), 0.0
DONE = Reply(200, b"done"), 0.0


@pytest.mark.parametrize("status", [200, 400, 401, 404, 413, 500])
def test_a_final_reply_is_not_tried_again(clock: Clock, status: int) -> None:
    assert clock.tries([(Reply(status, b""), 0.0)]).status == status
    assert not clock.pauses


def test_a_full_server_and_a_broken_connection_are_tried_again(clock: Clock) -> None:
    assert clock.tries([FULL, ConnectionError("reset"), (Reply(503, b""), 0.0), DONE]) == DONE[0]
    assert len(clock.pauses) == 3


def test_the_servers_wish_is_heeded_up_to_a_limit(clock: Clock) -> None:
    clock.tries([(Reply(503, b""), 8.0), (Reply(503, b""), 3600.0), DONE])
    assert 4 <= clock.pauses[0] <= 8
    assert 10 <= clock.pauses[1] <= 20


def test_patience_ends(clock: Clock) -> None:
    assert clock.tries([FULL] * 100, patience_s=10) == FULL[0]
    assert clock.now_s <= 10
    with pytest.raises(ConnectionError, match="reset"):
        clock.tries([ConnectionError("reset")] * 100, patience_s=10)
