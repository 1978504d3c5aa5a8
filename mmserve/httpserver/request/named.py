"""What a front's names stand for in a built prompt: which of its pictures, and how many of its tokens. Pure.

A front names pictures in their order, and text by its bytes, for it does not tokenize. Between two pictures, tokens are
taken to be spread evenly over the text.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mmserve.httpserver.call import Prompt
from mmserve.messages.media import MediaSpan, short_key
from mmserve.messages.relay import BEGINNING_NBYTES, NAME_NBYTES, Relay


class Named(NamedTuple):
    """See GenerateRequest."""

    pictures: tuple[tuple[int, int], ...] = ()
    beginnings: tuple[tuple[int, int], ...] = ()


NOTHING = Named()


class _Picture(NamedTuple):
    """Of a prompt: its first token, the one after its last, and its key."""

    start: int
    end: int
    key: bytes


class _Stretch(NamedTuple):
    """Some of the text, up to a byte, and the tokens that it becomes. A picture's come all at once, after it."""

    nbytes: int
    tokens: int
    is_picture: bool


def named_in(relay: Relay, prompt: Prompt) -> Named:
    """What the names of a front are of. Pictures have none if the front has found fewer or more than there are."""
    pictures = [*_pictures(prompt.spans)]
    if len(pictures) != len(relay.pictures):
        return Named((), _beginnings(relay, [_Stretch(relay.text_nbytes, len(prompt.ids), is_picture=False)]))
    names = tuple((name, short_key(each.key)) for (name, _), each in zip(relay.pictures, pictures, strict=True))
    places = [at for _, at in relay.pictures]
    return Named(names, _beginnings(relay, [*_stretches(places, pictures, relay.text_nbytes, len(prompt.ids))]))


def _pictures(spans: Sequence[MediaSpan]) -> Iterator[_Picture]:
    """In their order."""
    of_each: dict[int, list[MediaSpan]] = {}
    for span in spans:
        of_each.setdefault(span.media_index, []).append(span)
    for _, each in sorted(of_each.items()):
        yield _Picture(each[0].start, each[-1].start + each[-1].num_tokens, each[0].key)


def _stretches(
    places: Sequence[int], pictures: Sequence[_Picture], text_nbytes: int, num_tokens: int
) -> Iterator[_Stretch]:
    for at, picture in zip(places, pictures, strict=True):
        yield _Stretch(at, picture.start, is_picture=False)
        yield _Stretch(at + NAME_NBYTES, picture.end, is_picture=True)
    yield _Stretch(text_nbytes, num_tokens, is_picture=False)


def _beginnings(relay: Relay, stretches: Sequence[_Stretch]) -> tuple[tuple[int, int], ...]:
    return tuple(
        (name, _tokens(number * BEGINNING_NBYTES, stretches)) for number, name in enumerate(relay.blocks, start=1)
    )


def _tokens(nbytes: int, stretches: Sequence[_Stretch]) -> int:
    """About how many tokens the text's first ``nbytes`` become."""
    index = bisect_right(stretches, nbytes, key=lambda stretch: stretch.nbytes)
    first_nbytes, before, _ = stretches[index - 1] if index else _Stretch(0, 0, is_picture=False)
    if index == len(stretches):
        return before
    stretch = stretches[index]
    if stretch.is_picture:
        return before
    return before + (stretch.tokens - before) * (nbytes - first_nbytes) // (stretch.nbytes - first_nbytes)
