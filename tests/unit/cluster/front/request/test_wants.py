from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.front.request.wants import Namer
from mmserve.cluster.scale.policy import Want

_BYTES = bytes(range(256)) * 60
_PICTURE = "data:image/png;base64," + base64.b64encode(_BYTES).decode()


def _want(body: bytes, secret: bytes = b"secret") -> Want:
    return asyncio.run(Namer(secret).want(body))


def _body(*texts: str, pictures: tuple[str, ...] = (), **fields: Any) -> bytes:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    messages = [{"role": "user", "content": [*images, {"type": "text", "text": text}]} for text in texts]
    return json.dumps({"model": "m", **fields, "messages": messages}).encode()


def test_a_picture_has_one_name_wherever_it_stands_and_another_picture_another() -> None:
    alone = _want(_body("What is this?", pictures=(_PICTURE,)))
    beside = _want(_body("And these?", pictures=("data:image/png;base64," + "Zm9v" * 25, _PICTURE)))
    assert len(alone.pictures) == 1
    assert len(beside.pictures) == 2
    assert alone.pictures[0] in beside.pictures
    (linked,) = _want(_body("x", pictures=("https://a.example/1.png",))).pictures
    assert linked not in beside.pictures


def _of_responses(picture: bytes, **dumps: Any) -> bytes:
    url = "data:image/jpeg;base64," + base64.b64encode(picture).decode()
    return json.dumps({"input": [{"content": [{"type": "input_image", "image_url": url}]}]}, **dumps).encode()


def _of_anthropic(picture: bytes) -> bytes:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(picture).decode()}
    return json.dumps({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}).encode()


@pytest.mark.parametrize("picture", [_BYTES, _BYTES[:70], _BYTES * 100], ids=["long", "short", "in a thread"])
def test_a_picture_is_named_by_its_bytes_in_any_protocol_and_spelling(picture: bytes) -> None:
    plain = _of_responses(picture)
    bodies = [
        plain,
        _of_responses(picture, indent=4, separators=(" ,", " : ")),
        plain.replace(b"/", b"\\/"),
        plain.replace(b"+", b"%2B").replace(b"=", b"%3d"),
        plain.replace(b"image/jpeg", b"image/png;name=a"),
        _of_anthropic(picture),
        _body("x", pictures=("data:;base64," + base64.b64encode(picture).decode(),)),
    ]
    wants = [_want(body) for body in bodies]
    assert {want.pictures for want in wants} == {wants[0].pictures}
    assert len(wants[0].pictures) == 1
    assert _want(_of_responses(picture[:-1] + b"!")).pictures != wants[0].pictures


def test_a_picture_that_is_fetched_is_named_by_its_url() -> None:
    named = {
        _want(b'{"messages": [{"url": "%s"}]}' % url).pictures for url in (b"https://a/b.png", b"https:\\/\\/a\\/b.png")
    }
    assert len(named) == 1
    assert len(*named) == 1


def test_what_is_no_base64_has_a_name_of_its_own() -> None:
    broken = [_want(_body("x", pictures=("data:image/png;base64," + "A*" * 60 + end,))).pictures for end in "ab"]
    assert broken[0] != broken[1]


def test_pictures_beyond_the_most_that_are_named_end_the_names_of_the_text() -> None:
    pictures = tuple(f"data:;base64,{number:04d}" + "A" * 96 for number in range(300))
    want = _want(_body("y" * 5000, pictures=pictures))
    assert len(want.pictures) == 256
    assert len(want.blocks) < 128
    assert want.blocks == _want(_body("z" * 5000, pictures=pictures[:256] + pictures[270:])).blocks


def test_tenants_with_a_salt_and_clusters_with_another_secret_share_no_names() -> None:
    text = "y" * 2000
    wants = [
        _want(_body(text, pictures=(_PICTURE,))),
        _want(_body(text, pictures=(_PICTURE,), cache_salt="a")),
        _want(_body(text, pictures=(_PICTURE,)), b"other"),
    ]
    names = [{*want.pictures, *want.blocks} for want in wants]
    assert sum(map(len, names)) == len(set().union(*names))


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_the_last() -> None:
    first = _want(_body("z" * 3000, pictures=(_PICTURE,), temperature=0))
    second = _want(_body("z" * 3000, "go on" * 300, pictures=(_PICTURE,), temperature=0))
    other = _want(_body("w" + "z" * 2999, "go on" * 300, pictures=(_PICTURE,)))
    assert len(first.blocks) >= 5
    assert second.blocks[: len(first.blocks) - 1] == first.blocks[:-1]
    assert not set(other.blocks) & set(first.blocks)
    assert second.tokens > first.tokens


def test_a_long_text_has_a_bounded_number_of_names() -> None:
    assert len(_want(_body("t" * 1_000_000)).blocks) == 128


@given(st.binary(max_size=200))
def test_any_body_is_answered(body: bytes) -> None:
    want = _want(body)
    assert want.blocks == ()
    assert want.tokens <= 200


def test_places_of_pictures_are_told_in_their_order_also_of_one_that_comes_again() -> None:
    body = b'{"model": "m", "messages": ["%s", {"url": "https://a/b.png"}, "%s"]}' % ((_PICTURE.encode(),) * 2)
    want = _want(body)
    first, fetched, again = want.places
    assert first[0] == again[0]
    assert want.pictures == (first[0], fetched[0])
    before = len(b'"messages": ["')
    assert first[1] == before
    assert fetched[1] == before + 16 + len(b'", {')
    assert again[1] == fetched[1] + len(b'"url": "https://a/b.png"}, "')
    assert want.text_nbytes == again[1] + 16 + len(b'"]}')


def test_pictures_beyond_the_most_that_are_named_have_no_place() -> None:
    want = _want(
        _body("x", pictures=tuple("data:image/png;base64," + "A" * (100 + 4 * number) for number in range(300)))
    )
    assert len(want.places) == 256


def test_a_response_in_the_background_is_recognised_behind_any_number_of_pictures() -> None:
    pictures = tuple(f"data:;base64,{number:04d}" + "A" * 96 for number in range(300))
    for count in (1, 257, 300):
        body = _body("x", pictures=pictures[:count])
        assert not _want(body).in_background
        assert _want(body[:-1] + b', "background": true}').in_background


def test_tenants_have_names_of_their_own_for_the_same_bytes() -> None:
    body = _body("x" * 2000, pictures=(_PICTURE,))
    wants = [asyncio.run(Namer(b"secret").want(body, tenant)) for tenant in (b"", b"alice", b"bob")]
    assert len({want.pictures for want in wants}) == 3
    assert not set(wants[1].blocks) & set(wants[2].blocks)
