"""Different images, settings or tenants never share a content key, with any hash."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.config.fields import MmHash
from mmserve.httpserver.media.content_key import ContentKeys, framed, second_key
from mmserve.processors.image_files.picture import Header

PICTURE = Header(30, 100, "RGB")
CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=["xxh3", "blake3", "sha256"])
def algorithm(request: pytest.FixtureRequest) -> MmHash:
    if request.param == "blake3":
        pytest.importorskip("blake3")
    return cast(MmHash, request.param)


def keys(algorithm: MmHash, seed: int = 1, model: str = "/models/a", settings: bytes = b"settings") -> ContentKeys:
    return ContentKeys(algorithm, seed=seed, model=model, settings=settings)


def test_the_same_image_has_the_same_key(algorithm: MmHash) -> None:
    key = keys(algorithm).of(CONTENT, PICTURE, "")
    assert key == keys(algorithm).of(bytes(bytearray(CONTENT)), Header(30, 100, "RGB"), "")
    assert len(key) == (16 if algorithm == "xxh3" else 32)


def test_crafted_collisions_have_different_keys(algorithm: MmHash) -> None:
    of = keys(algorithm).of
    found = [
        of(CONTENT, PICTURE, ""),
        of(CONTENT, Header(100, 30, "RGB"), ""),
        of(CONTENT, Header(3000, 1, "RGB"), ""),
        of(CONTENT, Header(30, 100, "L"), ""),
        of(CONTENT, PICTURE, "tenant"),
        of(CONTENT + b"\0", PICTURE, ""),
        of(CONTENT[:-1], PICTURE, ""),
        of(b"", PICTURE, ""),
        of(b"", PICTURE, CONTENT.decode("latin-1")),
        keys(algorithm, settings=b"other settings").of(CONTENT, PICTURE, ""),
        keys(algorithm, settings=b"").of(CONTENT, PICTURE, "settings"),
        keys(algorithm, model="/models/b").of(CONTENT, PICTURE, ""),
        keys(algorithm, seed=2).of(CONTENT, PICTURE, ""),
    ]
    assert len(set(found)) == len(found)


def test_a_list_and_its_concatenation_share_no_key(algorithm: MmHash) -> None:
    of = keys(algorithm).of
    for cut in (0, 1, 16, len(CONTENT) - 1, len(CONTENT)):
        parts = {of(part, PICTURE, "") for part in (CONTENT[:cut], CONTENT[cut:]) if part != CONTENT}
        assert of(CONTENT, PICTURE, "") not in parts


def test_bytes_moved_to_another_field_change_the_key(algorithm: MmHash) -> None:
    found = {
        keys(algorithm, model="ab", settings=b"c").of(b"d", PICTURE, ""),
        keys(algorithm, model="a", settings=b"bc").of(b"d", PICTURE, ""),
        keys(algorithm, model="abc", settings=b"").of(b"d", PICTURE, ""),
        keys(algorithm, model="ab", settings=b"").of(b"d", PICTURE, "c"),
        keys(algorithm, model="ab", settings=b"").of(b"cd", PICTURE, ""),
    }
    assert len(found) == 5


def test_second_keys_differ_for_different_bytes(algorithm: MmHash) -> None:
    first = keys(algorithm).of(CONTENT, PICTURE, "")
    assert second_key(first, CONTENT) == second_key(first, CONTENT)
    assert len({first, second_key(first, CONTENT), second_key(first, b"other"), second_key(b"other", CONTENT)}) == 4


@given(st.lists(st.binary(max_size=20), max_size=5), st.lists(st.binary(max_size=20), max_size=5))
def test_framing_is_injective(left: list[bytes], right: list[bytes]) -> None:
    assert (framed(*left) == framed(*right)) == (left == right)
