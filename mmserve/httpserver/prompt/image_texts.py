"""Puts the expansions of images in the place of the placeholders that the chat template has written. Pure.

This happens before tokenizing: an expansion has text of its own, which some tokenizers join with the text around it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.httpserver.prompt.user_text import Interval
from mmserve.runtime.errors import InvalidRequest


class PlacesMismatch(InvalidRequest):
    """The chat template has written more or fewer placeholders than there are images."""


def places_of(placeholder: str, text: str, user: Sequence[Interval] = ()) -> list[int]:
    """Where the placeholder stands in ``text``, except where it overlaps characters of users."""
    found, at = [], text.find(placeholder)
    while at >= 0:
        end = at + len(placeholder)
        is_users = any(first < end and at < last for first, last in user)
        if not is_users:
            found.append(at)
        at = text.find(placeholder, at + 1 if is_users else end)
    return found


def expanded(
    placeholder: str, text: str, expansions: Sequence[str], user: Sequence[Interval] = ()
) -> tuple[str, list[Interval]]:
    """``text`` with one expansion for each placeholder, and the intervals of users in it.

    Raises PlacesMismatch if there are more or fewer placeholders than expansions.
    """
    places = places_of(placeholder, text, user)
    if len(places) != len(expansions):
        raise PlacesMismatch(f"the prompt has places for {len(places)} of {len(expansions)} images here")
    pieces, copied = [], 0
    for at, expansion in zip(places, expansions, strict=True):
        pieces += [text[copied:at], expansion]
        copied = at + len(placeholder)
    growths = [len(expansion) - len(placeholder) for expansion in expansions]
    return "".join([*pieces, text[copied:]]), _moved(user, places, growths)


def _moved(user: Sequence[Interval], places: Sequence[int], growths: Sequence[int]) -> list[Interval]:
    """Each interval, moved by what the text in front of it has grown."""
    moved, growth, num_passed = [], 0, 0
    for start, end in user:
        while num_passed < len(places) and places[num_passed] < start:
            growth += growths[num_passed]
            num_passed += 1
        moved.append((start + growth, end + growth))
    return moved
