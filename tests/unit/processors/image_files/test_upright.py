"""A part of a decoded picture equals the same part of the whole picture, turned and converted by Pillow."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageOps

from mmserve.processors.image_files.upright import UprightPicture
from tests.fakes.pictures.media import picture

WIDTH, HEIGHT = 13, 7
SOURCE = picture(WIDTH, HEIGHT)


@given(orientation=st.integers(1, 8), edges=st.tuples(*[st.integers(0, 12)] * 4))
def test_parts_of_a_turned_picture(orientation: int, edges: tuple[int, int, int, int]) -> None:
    turned = SOURCE.copy()
    turned.getexif()[0x0112] = orientation
    whole = ImageOps.exif_transpose(turned)
    part = UprightPicture(SOURCE, orientation)
    assert part.size == whole.size
    left, right = sorted((edges[0] % whole.width, edges[1] % whole.width))
    top, bottom = sorted((edges[2] % whole.height, edges[3] % whole.height))
    box = (left, top, right + 1, bottom + 1)
    assert np.array_equal(np.asarray(part.rgb(*box)), np.asarray(whole.crop(box)))


def test_only_an_upright_opaque_rgb_picture_is_plain() -> None:
    assert UprightPicture(SOURCE).plain is SOURCE
    transparent = SOURCE.copy()
    transparent.info["transparency"] = (1, 2, 3)
    for other in (UprightPicture(SOURCE, 2), UprightPicture(SOURCE.convert("L")), UprightPicture(transparent)):
        assert other.plain is None
