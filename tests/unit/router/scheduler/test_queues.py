from __future__ import annotations

from itertools import count

from mmserve.router.kv_cache.manager import BlockTable, PrefixMatch
from mmserve.router.scheduler.queues import (
    MAX_BYPASSES,
    MAX_CANDIDATES,
    MAX_TEXTS_BEFORE_MEDIA,
    RunningSet,
    WaitingQueue,
)
from mmserve.router.scheduler.sequence import Sequence
from tests.unit.router.builders import request, span

numbers = count()


def sequence(name: str, output: tuple[int, ...] = (), priority: int = 0) -> Sequence:
    return Sequence(request(name, [1], output=output, priority=priority), next(numbers), 0.0, 100)


def with_image(name: str, priority: int = 0) -> Sequence:
    message = request(name, [1, 7, 7], spans=(span(1, 2, 7),), priority=priority)
    return Sequence(message, next(numbers), 0.0, 100)


def names(queue: WaitingQueue) -> list[str]:
    return [candidate.request.id for candidate in queue.candidates()]


def test_first_come_first_served_but_resumed_sequences_go_first() -> None:
    queue = WaitingQueue()
    older, newer = sequence("older"), sequence("newer")
    for member in (sequence("a"), sequence("b"), sequence("resumed", output=(5,))):
        queue.push(member)
    queue.push_front(newer)
    queue.push_front(older)
    assert names(queue) == ["older", "newer", "resumed", "a", "b"]
    assert len(queue) == 5


def test_one_suspect_goes_after_resumed_sequences_and_the_others_are_in_nobodys_way() -> None:
    queue = WaitingQueue()
    suspects = [Sequence(request(f"suspect {n}", [1], num_deaths=2), next(numbers), 0.0, 100) for n in range(12)]
    for member in (*suspects, sequence("new"), sequence("resumed", output=(5,))):
        queue.push(member)
    assert names(queue) == ["resumed", "suspect 0", "new"]
    assert len(queue) == 14
    queue.pop(suspects[0], [])
    assert names(queue) == ["resumed", "suspect 1", "new"]
    queue.push_front(suspects[0])
    assert names(queue)[1] == "suspect 0"


def test_a_lower_priority_value_goes_first_and_equal_ones_as_they_came() -> None:
    queue = WaitingQueue()
    members = [sequence(f"{priority} {number}", priority=priority) for number in range(2) for priority in (0, 5, -3)]
    for member in (with_image("urgent image", priority=-3), *members):
        queue.push(member)
    assert names(queue) == ["-3 0", "-3 1", "urgent image", "0 0", "0 1", "5 0", "5 1"]
    for member in [member for member in members if member.request.priority == 0]:
        queue.pop(member, [])
    queue.push(sequence("resumed", output=(5,), priority=9))
    assert names(queue) == ["resumed", "-3 0", "-3 1", "urgent image", "5 0", "5 1"]
    assert len(queue) == 6
    queue.push(sequence("0 2", priority=0))
    assert names(queue)[4] == "0 2"


def test_the_number_of_candidates_is_bounded() -> None:
    queue = WaitingQueue()
    members = [sequence(str(index)) for index in range(3 * MAX_CANDIDATES)]
    for member in members:
        queue.push(member)
    assert names(queue) == [str(index) for index in range(MAX_CANDIDATES)]
    queue.remove(members[0])
    queue.remove(members[-1])
    assert names(queue) == [str(index) for index in range(1, MAX_CANDIDATES + 1)]
    assert len(queue) == 3 * MAX_CANDIDATES - 2


def test_a_sequence_is_bypassed_at_most_max_bypasses_times() -> None:
    queue = WaitingQueue()
    big = sequence("big")
    queue.push(big)
    for index in range(MAX_BYPASSES):
        small = sequence(str(index))
        queue.push(small)
        assert names(queue) == ["big", str(index)]
        queue.pop(small, [big])
    queue.push(sequence("late"))
    assert names(queue) == ["big"]
    queue.pop(big, [])
    assert names(queue) == ["late"]


def test_text_goes_before_images() -> None:
    queue = WaitingQueue()
    for number in range(MAX_CANDIDATES):
        queue.push(with_image(f"image {number}"))
    queue.push(sequence("text"))
    assert names(queue)[0] == "text"


def test_images_wait_for_a_bounded_number_of_text_requests() -> None:
    queue = WaitingQueue()
    queue.push(earlier := sequence("earlier"))
    queue.push(first := with_image("first"))
    queue.push(with_image("second"))
    queue.pop(earlier, [])
    for number in range(MAX_TEXTS_BEFORE_MEDIA):
        queue.push(text := sequence(f"text {number}"))
        assert names(queue) == [f"text {number}", "first", "second"]
        queue.pop(text, [])
    queue.push(sequence("late"))
    assert names(queue) == ["first", "late", "second"]
    queue.pop(first, [])
    assert names(queue) == ["late", "second"]


def test_removing_the_oldest_image_request_resets_the_count_of_text_requests() -> None:
    queue = WaitingQueue()
    queue.push(first := with_image("first"))
    for number in range(MAX_TEXTS_BEFORE_MEDIA):
        queue.push(text := sequence(f"text {number}"))
        queue.pop(text, [])
    queue.push(with_image("second"))
    queue.remove(first)
    queue.push(sequence("late"))
    assert names(queue) == ["late", "second"]


def test_running_sequences_are_kept_in_order_of_arrival_and_freed_slots_are_reported_once() -> None:
    running, members = RunningSet(2), [sequence("older"), sequence("newer")]
    for member in reversed(members):
        running.add(member, BlockTable([0], [], PrefixMatch([])))
    assert running.sequences == members
    assert (running.has_free_slot, running.has_freed_slots) == (False, False)
    older = members[0]
    running.remove(older)
    assert (running.sequences, running.has_free_slot) == (members[1:], True)
    assert (running.take_freed_slots(), running.take_freed_slots()) == ((older.slot,), ())
