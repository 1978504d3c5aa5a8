"""The memory of decoding a picture is what its header says; small files cannot make it large."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmserve.processors.image_files.jpeg_header import jpeg_header
from mmserve.processors.image_files.picture import decode, header
from mmserve.processors.pixels import resizing
from mmserve.runtime.errors import MediaError
from tests.fakes.pictures.media import encoded, llava_processor, picture, png, write_preprocessor
from tests.fakes.pictures.tower_inputs import numbers

LIMIT = 64_000_000
MIB = 1 << 20


@pytest.mark.parametrize("mode", ["L", "P", "LA", "RGB", "RGBA", "I;16", "1", "CMYK"])
@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("family", ["CLIPImageProcessor", "LlavaImageProcessor"])
def test_pixels_do_not_depend_on_the_bands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, turn: int, family: str
) -> None:
    write_preprocessor(tmp_path, do_pad=True, image_processor_type=family)
    processor = llava_processor(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = turn
    data = encoded(picture(61, 44, mode), "TIFF" if mode == "CMYK" else "PNG", exif=exif)
    whole = numbers(processor, data).values
    monkeypatch.setattr(resizing, "BAND_PIXELS", 61 * 3)
    assert np.array_equal(numbers(processor, data).values, whole)


def _gif(width: int, height: int, before_frame: bytes = b"") -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0)
    disposed = b"!\xf9\x04" + bytes([2 << 2, 0, 0, 0, 0])
    return screen + disposed + before_frame + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\2\2\x4c\1\0;"


def test_the_area_of_a_gifs_frame_is_not_allocated_before_its_size_is_checked() -> None:
    blocks = Image.core.get_stats()["new_count"]
    with pytest.raises(MediaError, match="too large"):
        header(_gif(60_000, 60_000), LIMIT)
    assert header(_gif(8000, 8000), LIMIT)[:2] == (8000, 8000)
    assert Image.core.get_stats()["new_count"] == blocks


@pytest.mark.parametrize("data", [b"GIF89a", b"GIF89a\1\0\1\0\0\0\0;", _gif(4, 4)[:30], _gif(4, 4)[:20]])
def test_a_gif_without_a_frame_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError):
        header(data, LIMIT)


@pytest.mark.parametrize("mode", ["L", "P", "RGB", "1"])
@pytest.mark.parametrize("options", [{}, {"interlace": 0}, {"comment": b"x" * 1000}, {"transparency": 3}])
def test_the_header_of_a_gif_agrees_with_pillow(mode: str, options: dict[str, object]) -> None:
    data = encoded(picture(37, 23, mode), "GIF", **options)
    with Image.open(io.BytesIO(data)) as image:
        assert header(data, LIMIT)[:3] == (*image.size, image.mode)


def _jpeg_with(segments: bytes) -> bytes:
    data = encoded(picture(40, 30), "JPEG")
    return data[:2] + segments + data[2:]


_PNG = png()
_CHUNK = struct.pack(">I", 0) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))


@pytest.mark.parametrize(
    "data",
    [
        _jpeg_with(b"\xff" * 200_000),
        _jpeg_with(b"\xff\xd0" * 100_000),
        _jpeg_with(b"\xff\xfe\0\2" * 100_000),
        _PNG[:33] + _CHUNK * 100_000 + _PNG[33:],
        _PNG[:-12] + _CHUNK * 100_000 + _PNG[-12:],
        _gif(4, 4, b"!\xfe" + b"\1x" * 100_000 + b"\0"),
        _gif(4, 4, b"x" * 100_000),
    ],
    ids=["fill bytes", "bare markers", "comments", "chunks before", "chunks behind", "blocks", "rubbish"],
)
def test_a_structure_that_takes_long_to_read_is_refused(data: bytes) -> None:
    with pytest.raises(MediaError, match="more than"):
        header(data, LIMIT)


def test_a_jpeg_with_very_many_scans_is_refused() -> None:
    data = encoded(picture(40, 30), "JPEG", progressive=True)
    assert jpeg_header(data) is not None
    scan = data.rindex(b"\xff\xda")
    with pytest.raises(MediaError, match="scans"):
        jpeg_header(data[:scan] + data[scan:-2] * 1_000_000 + data[-2:])


def test_a_run_length_encoded_bmp_is_decoded_up_to_a_limit() -> None:
    def bmp(width: int, height: int) -> bytes:
        lines = (bytes([width, 7]) + b"\0\0") * height + b"\0\1"
        info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(lines), 0, 0, 256, 0)
        palette = b"".join(bytes([index, 0, 255 - index, 0]) for index in range(256))
        offset = 14 + len(info) + len(palette)
        return b"BM" + struct.pack("<IHHI", offset + len(lines), 0, 0, offset) + info + palette + lines

    assert np.asarray(decode(bmp(20, 10)).rgb(0, 0, 20, 10))[3, 4].tolist() == [248, 0, 7]
    for read in (lambda data: header(data, LIMIT), decode):
        with pytest.raises(MediaError, match="run-length"):
            read(bmp(20, 10).replace(struct.pack("<ii", 20, 10), struct.pack("<ii", 4000, 2000)))


def test_text_in_a_png_takes_little_memory() -> None:
    text = b"k\0\0" + zlib.compress(bytes(1 << 20), 9)
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    data = _PNG[:33] + chunk * 60 + _PNG[33:]
    tracemalloc.start()
    try:
        with pytest.raises(MediaError):
            header(data, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
