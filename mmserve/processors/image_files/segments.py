"""Reads GIF headers and bounds the structure of PNG files, before Pillow opens them.

Pillow takes microseconds of Python for each chunk of a PNG and each block of a GIF; a file of a few MiB can have
millions. For a GIF it also allocates the area of the first frame before anybody has seen the size: up to 4 GiB for a
file of 40 bytes.
"""

from __future__ import annotations

import struct

from mmserve.runtime.errors import MediaError

MAX_SEGMENTS = 65_536
"""Limit for PNG chunks in the whole file, and for GIF blocks before the first frame. PNG encoders write chunks of 8 KiB
and more."""
_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK_OVERHEAD = 12
_GIF_STARTS = (b"GIF87a", b"GIF89a")
_GIF_SCREEN_NBYTES = 13
_GIF_FRAME = struct.Struct("<HHHHB")
_HAS_PALETTE = 0x80


def png_exif(data: bytes | memoryview) -> bytes | None:
    """The EXIF data of a PNG, also if they stand behind the pixels; None without any, and for another format.

    Raises MediaError for a PNG with too many chunks.
    """
    if data[: len(_PNG_START)] != _PNG_START:
        return None
    found, position = None, len(_PNG_START)
    for _ in range(MAX_SEGMENTS):
        if position + _PNG_CHUNK_OVERHEAD > len(data):
            return found
        nbytes = int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] == b"eXIf":
            found = b"Exif\0\0" + data[position + 8 : position + 8 + nbytes]
        position += _PNG_CHUNK_OVERHEAD + nbytes
    raise MediaError(f"the PNG has more than {MAX_SEGMENTS} chunks")


def gif_header(data: bytes) -> tuple[int, int, str] | None:
    """(width, height, Pillow mode) of the first frame; None for another format.

    Raises MediaError for a GIF without a frame, or with too many blocks before it.
    """
    if not data.startswith(_GIF_STARTS):
        return None
    try:
        width, height, flags = struct.unpack_from("<HHB", data, 6)
        palette, position = _palette(data, _GIF_SCREEN_NBYTES, flags)
        position = _first_frame(data, position)
        left, top, frame_width, frame_height, flags = _GIF_FRAME.unpack_from(data, position)
        if flags & _HAS_PALETTE:
            palette, _ = _palette(data, position + _GIF_FRAME.size, flags)
    except (struct.error, IndexError) as error:
        raise MediaError("the GIF has no complete frame") from error
    size = max(width, left + frame_width), max(height, top + frame_height)
    return (*size, "P" if _has_colours(palette) else "L")


def _palette(data: bytes, position: int, flags: int) -> tuple[bytes, int]:
    """The palette that ``flags`` announce, and the position behind it."""
    end = position + (3 << (flags & 7) + 1 if flags & _HAS_PALETTE else 0)
    return data[position:end], end


def _has_colours(palette: bytes) -> bool:
    """False if every entry is the grey of its index, so that indices are grey values already."""
    return any(grey // 3 != value for grey, value in enumerate(palette))


def _first_frame(data: bytes, position: int) -> int:
    """The position behind the separator of the first frame. Extensions in front of it are skipped.

    Raises IndexError at the end of the file.
    """
    num_blocks = 0
    while data[position : position + 1] not in (b",", b";", b""):
        if data[position] != ord("!"):
            position, num_blocks = position + 1, num_blocks + 1
        else:
            position += 2
            while length := data[position]:
                position, num_blocks = position + 1 + length, num_blocks + 1
                if num_blocks > MAX_SEGMENTS:
                    break
            position += 1
        if num_blocks > MAX_SEGMENTS:
            raise MediaError(f"the GIF has more than {MAX_SEGMENTS} blocks before its first frame")
    if data[position] == ord(";"):
        raise MediaError("the GIF has no frame")
    return position + 1
