"""Calls of a tower get smaller when memory runs out, and larger again after many that were as large as may be."""

from __future__ import annotations

from mmserve.visualserver.batches.call_size import _CALLS_BEFORE_MORE, CallSize


def test_calls_are_halved_and_grow_again_to_what_they_were() -> None:
    size = CallSize(12)
    size.ran_out(12)
    size.ran_out(6)
    assert size.now == 3
    sizes = []
    for _ in range(3):
        for _ in range(_CALLS_BEFORE_MORE - 1):
            size.fitted(size.now)
        before = size.now
        size.fitted(size.now)
        sizes.append((before, size.now))
    assert sizes == [(3, 6), (6, 12), (12, 12)]


def test_smaller_calls_show_nothing() -> None:
    size = CallSize(4)
    size.ran_out(4)
    for _ in range(3 * _CALLS_BEFORE_MORE):
        size.fitted(1)
    assert size.now == 2


def test_a_shortage_begins_the_count_again() -> None:
    size = CallSize(4)
    size.ran_out(4)
    for _ in range(_CALLS_BEFORE_MORE - 1):
        size.fitted(2)
    size.ran_out(2)
    size.fitted(1)
    assert size.now == 1
