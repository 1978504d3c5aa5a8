"""The limit of restarts in a time window."""

from __future__ import annotations

import pytest

from mmserve.supervisor.watching.restarts import RestartLimit


@pytest.mark.parametrize(
    ("times_s", "ready"),
    [((0, 1, 2), True), ((0, 1, 2), False), ((0, 100, 200), False)],
    ids=["in the window", "in the window and never ready", "in a row without getting ready, however slowly"],
)
def test_gives_up_after_too_many(times_s: tuple[float, ...], ready: bool) -> None:
    limit = RestartLimit(limit=2, window_s=10)
    *before, last = times_s
    for now_s in before:
        assert limit.allows("engine", now_s)
        if ready:
            limit.reset("engine")
    assert not limit.allows("engine", last)


def test_old_restarts_are_forgotten_and_groups_are_apart() -> None:
    limit = RestartLimit(limit=1, window_s=10)
    assert limit.allows("engine", 0)
    assert limit.allows("cache_server", 1)
    limit.reset("engine")
    assert limit.allows("engine", 11)
    assert not limit.allows("engine", 12)


def test_a_process_that_was_ready_in_between_may_be_restarted_again() -> None:
    limit = RestartLimit(limit=2, window_s=10)
    for now_s in range(0, 1000, 100):
        assert limit.allows("engine", now_s)
        limit.reset("engine")
