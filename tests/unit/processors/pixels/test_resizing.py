"""Resizing in bands gives what Pillow makes of the whole picture."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmserve.processors.image_files.upright import UprightPicture
from mmserve.processors.pixels import resizing
from mmserve.processors.pixels.resizing import resized
from mmserve.processors.pixels.sources import Canvas, Crop
from mmserve.runtime.errors import MediaError
from tests.fakes.pictures.media import picture

sides = st.integers(1, 60)
filters = st.sampled_from([Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS])


@given(width=sides, height=sides, target=st.tuples(sides, sides), resample=filters)
def test_any_size_to_any_other(width: int, height: int, target: tuple[int, int], resample: Image.Resampling) -> None:
    grey = picture(width, height, "L")
    with patch.object(resizing, "BAND_PIXELS", 100):
        result = resized(UprightPicture(grey), target, resample)
    assert np.array_equal(result, grey.convert("RGB").resize(target, resample))


def test_a_crop_and_a_canvas_are_resized_like_pictures_of_their_own() -> None:
    source = picture(50, 40)
    box = (10, 5, 44, 38)
    for target in ((20, 20), (45, 20), (45, 60)):
        part = resized(Crop(UprightPicture(source), box), target, Image.Resampling.BICUBIC)
        assert np.array_equal(part, source.crop(box).resize(target, Image.Resampling.BICUBIC))
        padded = Image.new("RGB", (61, 60), (1, 2, 3))
        padded.paste(source, (5, 10))
        canvas = Canvas(UprightPicture(source), (61, 60), (1, 2, 3))
        assert np.array_equal(
            resized(canvas, target, Image.Resampling.BICUBIC), padded.resize(target, Image.Resampling.BICUBIC)
        )


def test_a_picture_that_would_take_gigabytes_is_refused() -> None:
    with pytest.raises(MediaError, match="thin"):
        resizing.working_nbytes((1, 10_000_000), (448, 448))
