"""Time in which the supervisor did not run is not held against the processes that it watches."""

from __future__ import annotations

from mmserve.supervisor.watching.attended_time import AttendedTime


def _watching(until_s: int) -> AttendedTime:
    attended = AttendedTime(interval_s=1.0)
    for second in range(until_s + 1):
        attended.look(float(second))
    return attended


def test_all_time_counts_while_it_looks_in_time() -> None:
    attended = _watching(40)
    assert attended.elapsed_s(5.0, 40.0) == 35


def test_a_pause_does_not_count() -> None:
    attended = _watching(10)
    attended.look(110.0)
    assert attended.elapsed_s(10.0, 110.0) <= 2
    assert attended.elapsed_s(5.0, 110.0) <= 7
    attended.look(111.0)
    assert attended.elapsed_s(110.0, 111.0) == 1


def test_of_a_pause_only_the_part_after_a_heartbeat_is_taken_off() -> None:
    attended = _watching(10)
    attended.look(110.0)
    assert attended.elapsed_s(100.0, 110.0) == 0
    attended.look(111.0)
    attended.look(112.0)
    assert attended.elapsed_s(100.0, 112.0) == 2


def test_pauses_add_up() -> None:
    attended = _watching(10)
    for second in (60.0, 61.0, 111.0):
        attended.look(second)
    assert attended.elapsed_s(10.0, 111.0) <= 5


def test_a_pause_before_the_first_look_does_not_count() -> None:
    """The server is suspended when it has just become ready."""
    attended = AttendedTime(interval_s=1.0)
    attended.look(100.0)
    assert attended.elapsed_s(5.0, 100.0) == 0
    attended.look(101.0)
    assert attended.elapsed_s(5.0, 101.0) == 1
