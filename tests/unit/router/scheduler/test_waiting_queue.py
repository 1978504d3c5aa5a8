from __future__ import annotations

from itertools import count

from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.scheduler.waiting_queue import MAX_BYPASSES, TEXTS_FIRST, WINDOW, WaitingQueue
from tests.unit.router.builders import request, span

numbers = count()


def sequence(name: str, output: tuple[int, ...] = ()) -> Sequence:
    return Sequence(request(name, [1], output=output), next(numbers), 0.0, 100)


def picture(name: str) -> Sequence:
    return Sequence(request(name, [1, 7, 7], spans=(span(1, 2, 7),)), next(numbers), 0.0, 100)


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


def test_text_does_not_wait_for_pictures() -> None:
    queue = WaitingQueue()
    for number in range(WINDOW):
        queue.push(picture(f"picture {number}"))
    queue.push(sequence("text"))
    assert names(queue)[0] == "text"


def test_pictures_do_not_wait_for_ever_for_text() -> None:
    queue = WaitingQueue()
    queue.push(earlier := sequence("earlier"))
    queue.push(first := picture("first"))
    queue.push(picture("second"))
    queue.enter(earlier, [])
    for number in range(TEXTS_FIRST):
        queue.push(text := sequence(f"text {number}"))
        assert names(queue) == [f"text {number}", "first", "second"]
        queue.enter(text, [])
    queue.push(sequence("late"))
    assert names(queue) == ["first", "late", "second"]
    queue.enter(first, [])
    assert names(queue) == ["late", "second"]


def test_a_picture_that_is_given_up_leaves_its_turn_to_nobody() -> None:
    queue = WaitingQueue()
    queue.push(first := picture("first"))
    for number in range(TEXTS_FIRST):
        queue.push(text := sequence(f"text {number}"))
        queue.enter(text, [])
    queue.push(picture("second"))
    queue.remove(first)
    queue.push(sequence("late"))
    assert names(queue) == ["late", "second"]
