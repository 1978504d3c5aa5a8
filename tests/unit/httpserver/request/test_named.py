"""How many tokens a front's names stand for, with pictures between the words."""

from __future__ import annotations

from array import array

from mmserve.httpserver.call import Prompt
from mmserve.httpserver.request.named import named_in
from mmserve.messages.media import Handle, MediaSpan, short_key
from mmserve.messages.relay import NAME_NBYTES, Relay

_KEYS = bytes(range(16)), bytes(range(100, 116))


def _span(start: int, num_tokens: int, index: int) -> MediaSpan:
    handle = Handle(1, 0, 9)
    return MediaSpan(
        start=start,
        num_tokens=num_tokens,
        item_id=index,
        data=handle,
        embed=handle,
        media_index=index,
        key=_KEYS[index],
    )


def _prompt(num_tokens: int, *spans: MediaSpan) -> Prompt:
    return Prompt(array("q", range(num_tokens)), spans)


def _relay(text_nbytes: int, *pictures: tuple[int, int]) -> Relay:
    blocks = tuple(range(1, text_nbytes // 512 + 1))
    return Relay(request_id="r", created_s=0, body_nbytes=0, pictures=pictures, blocks=blocks, text_nbytes=text_nbytes)


def test_tokens_are_spread_evenly_over_a_text() -> None:
    assert named_in(_relay(2048), _prompt(400)).beginnings == ((1, 100), (2, 200), (3, 300), (4, 400))


def test_a_pictures_tokens_come_after_all_of_its_name() -> None:
    """A system prompt of 1,024 bytes and 300 tokens, a picture of 500 tokens, and a question."""
    relay = _relay(2048, (7, 1024))
    named = named_in(relay, _prompt(1000, _span(300, 500, 0)))
    assert named.beginnings[:2] == ((1, 150), (2, 300))
    assert named.beginnings[2] == (3, 800 + 200 * (1536 - 1024 - NAME_NBYTES) // (2048 - 1024 - NAME_NBYTES))
    assert named.beginnings[3] == (4, 1000)
    assert named.pictures == ((7, short_key(_KEYS[0])),)


def test_pictures_in_their_order_and_of_several_runs() -> None:
    relay = _relay(512, (7, 100), (8, 110))
    named = named_in(relay, _prompt(100, _span(10, 20, 0), _span(31, 20, 0), _span(52, 8, 1)))
    assert named.pictures == ((7, short_key(_KEYS[0])), (8, short_key(_KEYS[1])))
    assert named.beginnings == ((1, 100),)


def test_pictures_have_no_names_if_the_front_has_found_another_number_of_them() -> None:
    named = named_in(_relay(1024, (7, 100), (8, 200)), _prompt(100, _span(10, 20, 0)))
    assert named.pictures == ()
    assert named.beginnings == ((1, 50), (2, 100))
