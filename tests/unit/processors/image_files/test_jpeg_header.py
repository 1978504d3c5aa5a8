"""The JPEG header parser agrees with Pillow or returns None."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmserve.processors.image_files.jpeg_header import jpeg_header
from tests.fakes.pictures.media import encoded, picture, png

PLAIN = encoded(picture(40, 30), "JPEG")


def as_pillow(data: bytes) -> tuple[int, int, str]:
    with Image.open(BytesIO(data)) as image:
        return (*image.size, image.mode)


def exif() -> bytes:
    tags = Image.Exif()
    tags[0x0112] = 6  # turned by a quarter
    return tags.tobytes()


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"comment": b"\xff\xc0" * 99}, {"exif": exif()}, {"icc_profile": b"\xff\xda" * 40_000}],
    ids=["plain", "progressive", "comment", "exif", "profile"],
)
@pytest.mark.parametrize("size", [(1, 1), (644, 364), (17, 4000)])
def test_the_header_agrees_with_pillow(mode: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    data = encoded(picture(*size, mode), "JPEG", **options)
    found = jpeg_header(data)
    assert found is not None
    assert found[:3] == as_pillow(data)


def test_other_formats_give_none() -> None:
    for data in (b"", b"\xff", b"\xff\xd8\xff", png(), encoded(picture(), "GIF")):
        assert jpeg_header(data) is None


def test_a_truncated_header_gives_none() -> None:
    whole = jpeg_header(PLAIN)
    found = [jpeg_header(PLAIN[:length]) for length in range(len(PLAIN))]
    assert set(found) == {None, whole}
    assert found.index(whole) > PLAIN.index(b"\xff\xda")


@given(st.binary(max_size=200), st.integers(0, 620))
def test_random_bytes_raise_no_error(rubbish: bytes, position: int) -> None:
    data = PLAIN[:position] + rubbish + PLAIN[position + len(rubbish) :]
    found = jpeg_header(data)
    assert found is None or (min(found[:2]) >= 0 and found[2] in ("L", "RGB", "CMYK"))
