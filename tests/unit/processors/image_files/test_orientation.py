"""The header's size is that of the picture which Pillow turns upright, and so is the decoded picture's."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import pytest
from PIL import Image, ImageOps, PngImagePlugin

from mmserve.processors.image_files.orientation import orientation_of
from mmserve.processors.image_files.picture import decode, header
from tests.fakes.pictures.media import encoded, picture

XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="{}"/></x:xmpmeta>'


def _exif(turn: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = turn
    return tags.tobytes()


def _late_exif(turn: int) -> bytes:
    """A PNG whose EXIF data stand behind its pixels."""
    data, exif = encoded(picture(40, 30)), _exif(turn)[6:]
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    return data[:-12] + chunk + data[-12:]


def _turned(turn: int) -> Iterator[bytes]:
    for format in ("JPEG", "PNG", "WEBP", "TIFF"):
        yield encoded(picture(40, 30), format, exif=_exif(turn))
    yield encoded(picture(40, 30), "JPEG", xmp=XMP.format(turn).encode())
    text = PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", XMP.format(turn))
    yield encoded(picture(40, 30), pnginfo=text)
    yield _late_exif(turn)


@pytest.mark.parametrize("turn", range(10))
def test_header_and_picture_have_the_upright_size(turn: int) -> None:
    for data in _turned(turn):
        upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        assert header(data, 10_000)[:2] == decode(data).size == upright.size


def test_unreadable_metadata_turn_nothing() -> None:
    for exif in (b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0" + bytes(99), b"\xff" * 99):
        assert orientation_of({"exif": exif}) == 1


def test_metadata_of_any_length_are_read_quickly() -> None:
    fields = b"".join(struct.pack("<HHII", tag, 1, 1, 0) for tag in range(60_000))
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 60_000) + fields
    assert len(exif) > 1 << 19
    assert orientation_of({"exif": exif}) == 1
