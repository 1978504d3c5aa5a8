"""Stop strings in text that arrives in pieces."""

from __future__ import annotations

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
