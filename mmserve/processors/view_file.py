"""A read-only file over a view of somebody else's memory. Knows no format.

Not io.BytesIO, which would copy a view. Each ``read`` copies what it returns: decoders read a compressed picture in
windows of some 64 KiB, so it is never in memory a second time as a whole (WebP and compressed TIFF, which their
libraries want in one piece, excepted). And whatever happens to the memory meanwhile, a decoder's window does not
change under it.
"""

from __future__ import annotations

import io


class ViewFile(io.BufferedIOBase):
    """What Pillow needs of a file. Has no descriptor: ``fileno`` raises OSError."""

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes from the position on, all that are left for None or a negative one."""
        begin = self._position
        end = len(self._view) if size is None or size < 0 else begin + size
        window = self._view[begin:end].tobytes()
        self._position += len(window)
        return window

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Before the beginning is at the beginning."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position
