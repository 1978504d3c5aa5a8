"""How many bytes of images one request may still bring in, whatever they come from."""

from __future__ import annotations

import threading

from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import TooLarge


class RequestByteLimit:
    """Shared by all readers of one request, threads included."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self.message = f"the request's images exceed {nbytes / MIB:g} MiB in all"
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Raises TooLarge when that many are not left."""
        with self._lock:
            if nbytes > self.left:
                raise TooLarge(self.message)
            self.left -= nbytes
