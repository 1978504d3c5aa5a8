"""Places of n-grams: found as a search through all tokens finds them, whatever was indexed in how many calls."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.router.speculation import ngram_index
from mmserve.router.speculation.ngram_index import NgramIndex, continuation


def latest_place(tokens: list[int], length: int) -> int | None:
    """The latest place before the end where the last ``length`` tokens have ended."""
    end = tokens[len(tokens) - length :]
    places = range(length, len(tokens))
    return max((place for place in places if tokens[place - length : place] == end), default=None)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.lists(st.integers(1, 30), max_size=6))
def test_the_latest_place_of_the_longest_n_gram_is_found(tokens: list[int], sizes: list[int]) -> None:
    index = NgramIndex()
    for size in [*sizes, len(tokens)]:
        assert index.update(array("q", tokens[:size]))
    expected = None
    if len(tokens) > 3 and (place := latest_place(tokens, 3)) is not None:
        expected = place, False
    if len(tokens) > 8 and (place := latest_place(tokens, 8)) is not None:
        expected = place, True
    assert index.find(array("q", tokens)) == expected


def test_a_long_prompt_is_indexed_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_index, "MAX_TOKENS_AT_ONCE", 10)
    tokens = array("q", [*range(25), 1, 2, 3])
    index = NgramIndex()
    assert [index.update(tokens) for _ in range(3)] == [False, False, True]
    assert index.find(tokens) == (4, False)


def test_n_grams_of_equal_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_index, "_hash", lambda tokens, end, length: 0)
    tokens = array("q", [1, 2, 3, 4, 5, 6])
    index = NgramIndex()
    index.update(tokens)
    assert index.find(tokens) is None


@pytest.mark.parametrize(("place", "expected"), [(0, [1, 2, 3, 4, 1]), (1, [2, 3, 4, 2, 3]), (3, [4, 4, 4, 4, 4])])
def test_what_ends_with_the_sequence_repeats(place: int, expected: list[int]) -> None:
    assert continuation(array("q", [1, 2, 3, 4]), place, 5) == expected
