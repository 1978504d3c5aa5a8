"""ViewFile behaves like io.BytesIO over the same bytes, without copying them."""

from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmserve.processors.image_files.picture import decode
from mmserve.processors.image_files.view_file import ViewFile
from tests.fakes.pictures.media import encoded

CONTENT = bytes(range(40))
_seeks = st.one_of(
    st.tuples(st.integers(0, 50), st.just(io.SEEK_SET)),
    st.tuples(st.integers(-50, 50), st.sampled_from([io.SEEK_CUR, io.SEEK_END])),
)
_reads = st.one_of(st.none(), st.integers(-1, 60))


@given(st.lists(st.one_of(_seeks, _reads), max_size=12))
def test_reads_and_seeks_behave_like_bytesio(steps: list[tuple[int, int] | int | None]) -> None:
    file, expected = ViewFile(memoryview(CONTENT)), io.BytesIO(CONTENT)
    for step in steps:
        if isinstance(step, tuple):
            assert file.seek(*step) == expected.seek(*step)
        else:
            assert file.read(step) == expected.read(step)
        assert file.tell() == expected.tell()


def test_there_is_no_descriptor() -> None:
    with pytest.raises(OSError, match="fileno"):
        ViewFile(memoryview(b"")).fileno()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_format_is_decoded_from_a_view(format: str) -> None:
    rng = np.random.default_rng(3)
    data = encoded(Image.fromarray(rng.integers(0, 255, (70, 90, 3), np.uint8)), format)
    view = memoryview(bytearray(data)).toreadonly()
    first, second = (decode(source).rgb(0, 0, 90, 70) for source in (view, data))
    assert np.array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP"])
def test_compressed_bytes_are_not_copied_as_a_whole(format: str) -> None:
    """The peak of Python's own memory while decoding stays far below the size of the file."""
    rng = np.random.default_rng(4)
    data = encoded(Image.fromarray(rng.integers(0, 255, (1600, 1600, 3), np.uint8)), format)
    assert len(data) > 1 << 20
    view = memoryview(data)
    decode(view)
    tracemalloc.start()
    try:
        decode(view)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(data) / 2
