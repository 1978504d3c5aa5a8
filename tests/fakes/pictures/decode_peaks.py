"""Measures peak memory of decoding: ``python -m tests.fakes.pictures.decode_peaks SCRATCH`` prints a line of JSON each.

A process of its own, because the peak is the kernel's (VmHWM), and memory that others freed would hide it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmserve.processors.image_files.picture import header
from mmserve.processors.interface import ImageProcessor
from tests.fakes.models.image_processors import FAMILIES, family_processor
from tests.fakes.pictures.media import encoded, llava_processor, write_preprocessor

WIDTH, HEIGHT = 1200, 800
_MODES = {
    "PNG": ("1", "L", "P", "LA", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "RGB", "RGBA", "I;16"),
}
_OPTIONS: dict[str, list[dict[str, Any]]] = {
    "PNG": [{"compress_level": 1}],
    "JPEG": [{}, {"progressive": True}, {"progressive": True, "subsampling": 0}],
    "WEBP": [{"method": 0}, {"method": 0, "lossless": True}],
    "TIFF": [{}, {"compression": "tiff_lzw"}, {"compression": "tiff_lzw", "strip_size": 1 << 30}],
}
_TURNABLE = ("PNG", "JPEG", "WEBP", "TIFF")


def source(mode: str, width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """A picture of this mode that is quick to compress."""
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (height // 20, width // 20, 4), dtype=np.uint8).repeat(20, 0).repeat(20, 1)
    image = Image.fromarray(blocks)
    match mode:
        case "RGBA" | "LA":
            return image.convert(mode)
        case "I;16":
            return Image.fromarray(blocks[..., 0].astype(np.uint16) * 256)
        case "P":
            return Image.fromarray(blocks[..., 0] // 4).convert("RGB").convert("P", palette=Image.Palette.ADAPTIVE)
    return image.convert("RGB").convert(mode)


def pictures() -> Iterator[tuple[str, bytes]]:
    """(name, file): every accepted format and mode, and some of them turned by a quarter."""
    exif = Image.Exif()
    exif[0x0112] = 6
    for format, modes in _MODES.items():
        for mode in modes:
            image = source(mode)
            for options in _OPTIONS.get(format, [{}]):
                yield f"{format} {mode} {options}", encoded(image, format, **options)
            if format in _TURNABLE and mode in ("L", "RGB", "RGBA"):
                yield f"{format} {mode} turned", encoded(image, format, exif=exif, **_OPTIONS[format][0])
        if format == "PNG":
            yield "PNG P transparent", encoded(source("P"), "PNG", transparency=bytes(range(0, 256, 4)))
            yield "PNG RGB transparent", encoded(source("RGB"), "PNG", transparency=(1, 2, 3))


def measured(work: Callable[[], object]) -> int:
    """Peak growth of this process's resident memory during ``work``, in bytes."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


def main() -> None:
    scratch = Path(sys.argv[1])
    llava = llava_processor(write_preprocessor(scratch))
    for name, data in pictures():
        _measure(f"llava {name}", llava, data)
    some = [
        encoded(source("RGB"), "JPEG"),
        encoded(source("RGBA", 300, 1600)),
        encoded(source("L", 2400, 800)),
        encoded(source("RGB"), "WEBP", method=0),
    ]
    for family in FAMILIES:
        processor = family_processor(family, scratch)
        for index, data in enumerate(some):
            _measure(f"{family} {index}", processor, data)
            if family == "qwen2_5_vl":
                _measure(f"{family} {index} whole", processor, data, whole=True)


def _measure(name: str, processor: ImageProcessor, data: bytes, *, whole: bool = False) -> None:
    """Print a name, the peak and the estimate."""
    found = header(data, 64_000_000)
    estimate = processor.decoded_nbytes(found.width, found.height, found.loading_nbytes, whole=whole)
    peak = measured(lambda: processor.views(data, whole=whole))
    if peak > estimate:  # the first of a format loads its library
        peak = measured(lambda: processor.views(data, whole=whole))
    print(json.dumps([name, peak, estimate]), flush=True)


if __name__ == "__main__":
    main()
