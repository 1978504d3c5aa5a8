"""Text that arrives in pieces: literals are found where they begin first, and markers are one character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.output.parsing.source import Literals, Source, marker_char


def found(literals: tuple[str, ...], parts: list[str]) -> list[str]:
    """The text cut at the literals, each literal in brackets."""
    source, matcher, cut = Source(), Literals(literals), ""
    for part in [*parts, ""]:
        source.feed(part)
        if not part:
            source.end()
        while True:
            count, literal = matcher.search(source)
            cut += source.take(count)
            cut += f"[{source.take(len(literal))}]" if literal else ""
            if not literal:
                break
    return [cut, source.text[source.at :]]


@given(st.text("abc", max_size=12))
def test_literals_are_the_same_however_the_text_is_cut(text: str) -> None:
    """One literal is inside another here: the one that begins first counts, once it is certain."""
    literals = ("abcab", "bc", "cc")
    whole = found(literals, [text])
    assert found(literals, list(text)) == whole
    assert whole[1] == ""
    assert whole[0].replace("[", "").replace("]", "") == text


def test_an_earlier_beginning_counts_more_than_a_complete_literal() -> None:
    assert found(("abcd", "bc"), ["abc", "d", "abce"]) == ["[abcd]a[bc]e", ""]


def test_what_is_unfinished_at_the_end_is_text() -> None:
    assert found(("abcd",), ["xab", "c"]) == ["xabc", ""]


def test_markers_are_numbered_from_zero() -> None:
    assert marker_char(0) != marker_char(1)
    with pytest.raises(ValueError, match="marker -1"):
        marker_char(-1)
