"""A read-only file object over a memoryview, for decoding images in the arena without copying them first.

io.BytesIO would copy the whole view. ViewFile copies only what each ``read`` returns: decoders read windows of some
64 KiB, except for WebP and compressed TIFF, whose libraries read everything at once. Since the window is a copy, it
does not change when the arena's extent is overwritten meanwhile.
"""

from __future__ import annotations

import io


class ViewFile(io.BufferedIOBase):
    """The part of the file protocol that Pillow uses. There is no descriptor: ``fileno`` raises OSError."""

    def __init__(self, view: memoryview) -> None:
        super().__init__()
        self._view = view
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read at most ``size`` bytes; all remaining bytes if it is None or negative."""
        start = self._position
        end = len(self._view) if size is None or size < 0 else start + size
        window = self._view[start:end].tobytes()
        self._position += len(window)
        return window

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position. A negative result becomes 0."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._view)}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def tell(self) -> int:
        return self._position
