"""Image files are decoded to upright RGB pictures, or refused with a MediaError."""

from __future__ import annotations

import errno
import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from mmserve.processors.image_files.picture import decode, header
from mmserve.runtime.errors import MediaError
from tests.fakes.pictures.media import encoded, picture, truncated

LIMIT = 64_000_000


def rgb(data: bytes) -> Image.Image:
    """The whole picture, upright and in RGB."""
    picture = decode(data)
    return picture.rgb(0, 0, *picture.size)


def _png_header_claiming(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    idat = b"IDAT" + zlib.compress(b"\0")
    return body + struct.pack(">I", len(idat) - 4) + idat + struct.pack(">I", zlib.crc32(idat))


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_the_header_has_the_size_for_every_accepted_format(format: str) -> None:
    assert header(encoded(picture(40, 30), format), LIMIT)[:2] == (40, 30)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA"])
def test_the_header_has_the_mode(mode: str) -> None:
    assert header(encoded(picture(40, 30, mode)), LIMIT)[:3] == (40, 30, mode)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"not an image", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%!PS-Adobe-3.0 EPSF-3.0\n"],
)
def test_files_that_are_no_accepted_image_are_refused_by_header_and_decode(data: bytes) -> None:
    with pytest.raises(MediaError):
        header(data, LIMIT)
    with pytest.raises(MediaError):
        decode(data)


def test_other_formats_of_pillow_are_refused() -> None:
    with pytest.raises(MediaError, match="supported format"):
        header(encoded(picture(), "PPM"), LIMIT)


def test_a_decompression_bomb_is_refused_from_its_header_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MediaError, match="too large"):
            header(_png_header_claiming(60_000, 60_000), LIMIT)
    with pytest.raises(MediaError):
        header(_png_header_claiming(0, 10), LIMIT)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_a_truncated_image_has_a_header_but_cannot_be_decoded(format: str) -> None:
    data = truncated(encoded(picture(200, 150), format))
    try:
        header(data, LIMIT)
    except MediaError:
        return  # WebP keeps its whole size in front
    with pytest.raises(MediaError) as caught:
        decode(data)
    assert "0x" not in caught.value.message
    assert "/" not in caught.value.message


def test_exif_orientation_turns_the_picture_upright() -> None:
    image = picture(40, 20)
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = rgb(encoded(image, "PNG", exif=exif))
    assert np.array_equal(np.asarray(upright), np.asarray(image.rotate(-90, expand=True)))


def test_sixteen_bit_grey_keeps_its_brightness() -> None:
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    decoded = np.asarray(rgb(encoded(Image.fromarray(ramp), "PNG")))
    assert np.array_equal(decoded[..., 0], ramp >> 8)


def test_sixteen_bit_tiff_of_either_byte_order() -> None:
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16).reshape(8, 8)
    decoded = np.asarray(rgb(encoded(Image.frombytes("I;16B", (8, 8), ramp.astype(">u2").tobytes()), "TIFF")))
    assert np.array_equal(decoded[..., 1], ramp >> 8)


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(MediaError, match="16 bits"):
        rgb(encoded(Image.new("F", (4, 4), 0.5), "TIFF"))


@pytest.mark.parametrize(("mode", "format"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("P", "PNG"), ("P", "GIF")])
def test_other_colour_models_become_rgb(mode: str, format: str) -> None:
    source = Image.new("RGB", (16, 16), (200, 40, 60)).convert(mode)
    red, green, blue = np.asarray(rgb(encoded(source, format))).reshape(-1, 3).mean(0)
    assert abs(red - 200) < 12
    assert abs(green - 40) < 12
    assert abs(blue - 60) < 12


@pytest.mark.parametrize("mode", ["1", "L"])
def test_grey_becomes_rgb(mode: str) -> None:
    assert np.asarray(rgb(encoded(Image.new(mode, (5, 4), 255)))).tolist() == [[[255] * 3] * 5] * 4


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparent_pixels_become_white(mode: str) -> None:
    clear = Image.new(mode, (4, 4), (0,) * len(mode))
    assert np.asarray(rgb(encoded(clear))).min() == 255


def test_a_transparent_palette_entry_becomes_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 255, 0, 0])
    assert np.asarray(rgb(encoded(image, "PNG", transparency=1))).min() == 255


def test_only_the_first_frame_of_an_animation_is_decoded() -> None:
    buffer = io.BytesIO()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(rgb(buffer.getvalue()))[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("method", ["open", "load"])
def test_a_lack_of_descriptors_is_not_the_pictures_fault(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    data = encoded(picture(4, 4))
    monkeypatch.setattr(Image if method == "open" else PngImagePlugin.PngImageFile, method, fail)
    with pytest.raises(OSError, match="Too many open files"):
        decode(data)
