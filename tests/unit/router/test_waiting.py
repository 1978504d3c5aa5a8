from __future__ import annotations

from itertools import count

from mmserve.router.sequence import Sequence
from mmserve.router.waiting import MAX_BYPASSES, WINDOW, WaitingQueue
from tests.unit.router.builders import request

numbers = count()


def sequence(name: str, output: tuple[int, ...] = ()) -> Sequence:
    return Sequence(request(name, [1], output=output), next(numbers), 0.0, 100)


def names(queue: WaitingQueue) -> list[str]:
    return [candidate.request.id for candidate in queue.candidates()]


def test_first_come_first_served_but_who_has_begun_goes_first() -> None:
    queue = WaitingQueue()
    older, newer = sequence("older"), sequence("newer")
    for member in (sequence("a"), sequence("b"), sequence("resumed", output=(5,))):
        queue.push(member)
    queue.push_front(newer)
    queue.push_front(older)
    assert names(queue) == ["older", "newer", "resumed", "a", "b"]
    assert len(queue) == 5


def test_no_more_than_a_window_is_looked_at() -> None:
    queue = WaitingQueue()
    members = [sequence(str(index)) for index in range(3 * WINDOW)]
    for member in members:
        queue.push(member)
    assert names(queue) == [str(index) for index in range(WINDOW)]
    queue.remove(members[0])
    queue.remove(members[-1])
    assert names(queue) == [str(index) for index in range(1, WINDOW + 1)]
    assert len(queue) == 3 * WINDOW - 2


def test_who_was_bypassed_often_is_bypassed_no_more() -> None:
    queue = WaitingQueue()
    big = sequence("big")
    queue.push(big)
    for index in range(MAX_BYPASSES):
        small = sequence(str(index))
        queue.push(small)
        assert names(queue) == ["big", str(index)]
        queue.enter(small, [big])
    queue.push(sequence("late"))
    assert names(queue) == ["big"]
    queue.enter(big, [])
    assert names(queue) == ["late"]
