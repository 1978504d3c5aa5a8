from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.front.wants import Namer

_NAMER = Namer(b"secret")
_PICTURE = "data:image/png;base64," + "A" * 20_000


def _body(*texts: str, pictures: tuple[str, ...] = (), **fields: Any) -> bytes:
    images = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    messages = [{"role": "user", "content": [*images, {"type": "text", "text": text}]} for text in texts]
    return json.dumps({"model": "m", **fields, "messages": messages}).encode()


def test_a_picture_has_one_name_wherever_it_stands_and_another_picture_another() -> None:
    alone = _NAMER.want(_body("What is this?", pictures=(_PICTURE,)))
    beside = _NAMER.want(_body("And these?", pictures=("data:image/png;base64,Zm9v", _PICTURE)))
    assert len(alone.pictures) == 1
    assert len(beside.pictures) == 2
    assert alone.pictures[0] in beside.pictures
    (linked,) = _NAMER.want(_body("x", pictures=("https://a.example/1.png",))).pictures
    assert linked not in beside.pictures


def test_anthropics_pictures_are_named_too() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 20_000}
    body = json.dumps({"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}).encode()
    assert len(_NAMER.want(body).pictures) == 1


def test_tenants_with_a_salt_and_clusters_with_another_secret_share_no_names() -> None:
    text = "y" * 2000
    wants = [
        _NAMER.want(_body(text, pictures=(_PICTURE,))),
        _NAMER.want(_body(text, pictures=(_PICTURE,), cache_salt="a")),
        Namer(b"other").want(_body(text, pictures=(_PICTURE,))),
    ]
    names = [{*want.pictures, *want.blocks} for want in wants]
    assert sum(map(len, names)) == len(set().union(*names))


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_the_last() -> None:
    first = _NAMER.want(_body("z" * 3000, pictures=(_PICTURE,), temperature=0))
    second = _NAMER.want(_body("z" * 3000, "go on" * 300, pictures=(_PICTURE,), temperature=0))
    other = _NAMER.want(_body("w" + "z" * 2999, "go on" * 300, pictures=(_PICTURE,)))
    assert len(first.blocks) >= 5
    assert second.blocks[: len(first.blocks) - 1] == first.blocks[:-1]
    assert not set(other.blocks) & set(first.blocks)
    assert second.tokens > first.tokens


def test_a_long_text_has_a_bounded_number_of_names() -> None:
    assert len(_NAMER.want(_body("t" * 1_000_000)).blocks) == 128


@given(st.binary(max_size=200))
def test_any_body_is_answered(body: bytes) -> None:
    want = _NAMER.want(body)
    assert want.blocks == ()
    assert want.tokens <= 200
