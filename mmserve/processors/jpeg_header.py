"""Size and mode of a JPEG from its markers: ten times faster than opening it with Pillow, at whose speed every image
of every request would hold the interpreter. Knows what Pillow would say; leaves to it whatever is unusual.
"""

from __future__ import annotations

import struct

_START = b"\xff\xd8\xff"
_SEGMENT = struct.Struct(">BBH")
_FRAME = struct.Struct(">BHHB")
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""SOF0 to SOF15; the three left out are tables (ITU-T T.81, table B.1)."""
_SCAN_MARKER = 0xDA
_BARE_MARKERS = frozenset({0x01, 0xFF, *range(0xD0, 0xDA)})
_MODES = {1: "L", 3: "RGB", 4: "CMYK"}


def jpeg_header(data: bytes) -> tuple[int, int, str] | None:
    """(width, height, Pillow's mode) of a plain JPEG whose header is whole; None when somebody else must look."""
    if not data.startswith(_START):
        return None
    found, position = None, 2
    try:
        while True:
            lead, marker, nbytes = _SEGMENT.unpack_from(data, position)
            if lead != 0xFF or marker in _BARE_MARKERS or nbytes < 2:
                return None
            if marker == _SCAN_MARKER:
                return found
            if marker in _FRAME_MARKERS:
                precision, height, width, components = _FRAME.unpack_from(data, position + _SEGMENT.size)
                if precision != 8 or components not in _MODES or found is not None:
                    return None
                found = width, height, _MODES[components]
            position += 2 + nbytes
    except struct.error:
        return None
