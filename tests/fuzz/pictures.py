"""Damaged pictures of every accepted format: cut off, with bytes changed, inserted, removed, repeated or swapped.

Header check and decoding may refuse them with MediaError and nothing else, within a second of CPU time, in the memory
that the header announced. A decoded picture has the size that the header said.
"""

from __future__ import annotations

import io
import random
import tempfile
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from mmserve.processors.families.llava import LlavaProcessor
from mmserve.processors.image_files import picture
from mmserve.processors.image_files.picture import FORMATS, header
from mmserve.runtime.errors import MediaError
from tests.fakes.pictures.decode_peaks import measured, source
from tests.fakes.pictures.media import llava_processor, write_preprocessor

MAX_PIXELS = 64_000_000
"""The default of --max-image-pixels."""
MAX_CPU_S = 1.0
_NOISE_NBYTES = 4 << 20
"""What the interpreter and freshly loaded libraries add to a measurement."""
_WIDTH, _HEIGHT = 200, 140
_OPTIONS: dict[str, list[dict[str, object]]] = {
    "PNG": [{}, {"compress_level": 0}],
    "JPEG": [{}, {"progressive": True}, {"quality": 20, "subsampling": 0}],
    "WEBP": [{}, {"lossless": True}],
    "GIF": [{}, {"interlace": 0}],
    "BMP": [{}],
    "TIFF": [{}, {"compression": "tiff_lzw"}, {"compression": "jpeg"}, {"compression": "tiff_adobe_deflate"}],
}
_MODES = ("RGB", "L", "P", "RGBA", "1", "CMYK", "I;16", "LA")
_NUMBERS = (b"\0\0", b"\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\1\0\0", b"\x80\0\0\0")


def originals(format: str) -> list[bytes]:
    """Sound files of a format in all its modes, some with EXIF data, and an animation."""
    exif = Image.Exif()
    exif[0x0112] = 5
    files = []
    for mode in _MODES:
        for options in _OPTIONS[format]:
            for extra in ({}, {"exif": exif}):
                buffer = io.BytesIO()
                try:
                    source(mode, _WIDTH, _HEIGHT).save(buffer, format, **options, **extra)
                except (OSError, KeyError, ValueError):  # a mode that the format does not have
                    continue
                files.append(buffer.getvalue())
    if format in ("GIF", "WEBP", "PNG", "TIFF"):
        buffer = io.BytesIO()
        frames = [source(mode, _WIDTH, _HEIGHT) for mode in ("RGB", "L")]
        frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
        files.append(buffer.getvalue())
    return files


def damaged(format: str, count: int) -> Iterator[bytes]:
    """``count`` damaged files, always the same ones."""
    files = originals(format)
    for number in range(count):
        rng = random.Random(f"{format} {number}")
        data = _damage(bytearray(rng.choice(files)), rng)
        yield _with_checksums(data) if format == "PNG" and rng.random() < 0.7 else data


def _damage(data: bytearray, rng: random.Random) -> bytes:
    """One to four changes. Half of them are in the first 200 bytes, where the headers are."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        end = min(len(data), 200) if rng.random() < 0.5 else len(data)
        at = rng.randrange(max(1, end))
        match rng.randrange(7):
            case 0:
                del data[at:]
            case 1 | 2:
                data[at : at + 1] = rng.randbytes(1)
            case 3:
                number = rng.choice(_NUMBERS)
                data[at : at + len(number)] = number
            case 4:
                data[at:at] = rng.randbytes(rng.randrange(1, 64))
            case 5:
                del data[at : at + rng.randrange(1, 64)]
            case 6:
                data[at:at] = data[at : at + rng.randrange(1, 400)] * rng.randrange(1, 9)
    return bytes(data)


def _with_checksums(data: bytes) -> bytes:
    """A PNG with right checksums: without them, its decoder looks at little."""
    repaired, at = bytearray(data), 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            break
        repaired[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(repaired)


def attempt(processor: LlavaProcessor, data: bytes) -> str:
    """Check the header and decode as the server does. Returns how it ended; raises what the server must not see."""
    try:
        found = header(data, MAX_PIXELS)
        estimate = processor.decoded_nbytes(found.width, found.height, found.loading_nbytes)
    except MediaError:
        return "refused by its header"
    outcomes: list[str] = []

    def decode() -> None:
        try:
            processor.views(data)
            outcomes.append("decoded")
        except MediaError:
            outcomes.append("refused by its decoder")

    peak = measured(decode)
    assert peak <= 1.1 * estimate + _NOISE_NBYTES, f"{peak} bytes where {estimate} were announced"
    if outcomes == ["decoded"]:
        assert picture.decode(data).size == found[:2], f"the header says {found[:2]}"
    return outcomes[0]


def check(format: str, count: int) -> Counter[str]:
    """Try ``count`` damaged files of a format. Returns the number of each outcome. Raises AssertionError."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, about the damage
        processor = llava_processor(write_preprocessor(Path(directory)))
        for number, data in enumerate(damaged(format, count)):
            started_s = time.thread_time()
            try:
                outcomes[attempt(processor, data)] += 1
            except Exception as error:
                raise AssertionError(f"{format} {number}: {type(error).__name__}: {error}") from error
            took_s = time.thread_time() - started_s
            assert took_s < MAX_CPU_S, f"{format} {number} takes {took_s:.1f} s"
    return outcomes


def run(count: int) -> str:
    """All formats. Returns a summary."""
    outcomes: Counter[str] = Counter()
    for format in FORMATS:
        outcomes += check(format, count)
    return ", ".join(f"{number} {outcome}" for outcome, number in outcomes.items())
