"""Finds where the last tokens of a sequence stand earlier in it. Pure: no clock, no I/O."""

from __future__ import annotations

from array import array

_LONG, _SHORT = 8, 3
"""Tokens of the n-grams that are looked up. Where the long one is found, the short one's latest place is often another,
such as a repeated line of code."""
MAX_TOKENS_AT_ONCE = 4096
"""Tokens that one call indexes, about 2 ms. A longer prompt is indexed in several."""


class NgramIndex:
    """The latest place of each n-gram of one sequence, which only grows. About 200 bytes a token.

    A place is the index of the token after the n-gram. The n-gram at the end of the sequence has none yet.
    """

    def __init__(self) -> None:
        self._places: dict[int, dict[int, int]] = {_LONG: {}, _SHORT: {}}
        """By length: hash of an n-gram -> its latest place. N-grams of equal hash take each other's place."""
        self._num_indexed = 1
        """Places below this one are indexed."""

    def update(self, tokens: array[int]) -> bool:
        """Indexes what is new in ``tokens``, the whole sequence. False if some is left for the next call."""
        end = min(len(tokens), self._num_indexed + MAX_TOKENS_AT_ONCE)
        for length, places in self._places.items():
            for place in range(max(length, self._num_indexed), end):
                places[_hash(tokens, place, length)] = place
        self._num_indexed = max(self._num_indexed, end)
        return end == len(tokens)

    def find(self, tokens: array[int]) -> tuple[int, bool] | None:
        """The latest indexed place after the last tokens, and True if it was found by the long n-gram."""
        end = len(tokens)
        for length, places in self._places.items():
            if end <= length:
                continue
            place = places.get(_hash(tokens, end, length))
            if place is not None and tokens[place - length : place] == tokens[end - length :]:
                return place, length == _LONG
        return None


def continuation(tokens: array[int], place: int, num_tokens: int) -> list[int]:
    """What followed at ``place``. What ends with the sequence repeats from ``place`` on."""
    found = tokens[place : place + num_tokens].tolist()
    while len(found) < num_tokens:
        found += found[: num_tokens - len(found)]
    return found


def _hash(tokens: array[int], end: int, length: int) -> int:
    return hash(tokens[end - length : end].tobytes())
