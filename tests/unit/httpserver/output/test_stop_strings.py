"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.output.stop_strings import StopStrings

SHORT = st.text(alphabet="ab", min_size=1, max_size=4)


def feed(stops: tuple[str, ...], pieces: list[str]) -> tuple[list[str], bool]:
    found, shown = StopStrings(stops), []
    for piece in pieces:
        text, stopped = found.push(piece)
        shown.append(text)
        if stopped:
            return shown, True
    return [*shown, found.flush()], False


@given(st.lists(SHORT, max_size=12), st.lists(SHORT, min_size=1, max_size=3))
def test_no_part_of_a_stop_string_is_shown_and_no_other_text_is_lost(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)
    shown, stopped = feed(tuple(stops), pieces)
    text = "".join(shown)
    assert stopped == any(stop in whole for stop in stops)
    assert whole.startswith(text)
    assert not any(stop in text for stop in stops)
    assert stopped or text == whole


@given(st.lists(SHORT, max_size=12), SHORT)
def test_text_is_cut_at_the_first_stop_string(pieces: list[str], stop: str) -> None:
    shown, _ = feed((stop,), pieces)
    assert "".join(shown) == "".join(pieces).split(stop)[0]


def test_only_a_possible_start_is_held_back() -> None:
    stops = StopStrings(("END",))
    assert stops.push("all but E") == ("all but ", False)
    assert stops.push("N") == ("", False)
    assert stops.push("Dless") == ("", True)
    assert StopStrings(("END",)).push("ENE") == ("EN", False)


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert StopStrings(()).push("x") == ("x", False)


def _executed_lines(call: Callable[[], object]) -> int:
    """Lines of Python that ``call`` executes: a measure of work that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_the_work_for_a_text_is_proportional_to_its_length() -> None:
    stops = ("a" * 1000 + "b", "a" * 500 + "b" + "a" * 500 + "c")
    pieces = ["aaaa"] * 249 + ["c", "aaaa"] * 250
    lines = _executed_lines(lambda: feed(stops, pieces))
    assert lines < len(stops) * 20 * (sum(map(len, pieces)) + 1001)


def test_text_held_back_for_one_stop_string_makes_no_work_for_the_others() -> None:
    stops = StopStrings(("a" * 1000 + "b", *(f"{number}" + "c" * 1000 for number in range(15))))
    stops.push("a" * 900)
    assert _executed_lines(lambda: stops.push("aa")) < 16 * 20
