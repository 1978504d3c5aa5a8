"""Permission to use the tile registers of AMX. A process must ask Linux: its threads' state grows by 8 KiB."""

from __future__ import annotations

import ctypes
import platform
from functools import cache

_ARCH_PRCTL = 158
_REQUEST_PERMISSION, _TILE_DATA = 0x1023, 18


@cache
def permitted() -> bool:
    """Asks for this process and its later forks. False for a system without AMX, or one that refuses."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return False
    number, request, feature = map(ctypes.c_long, (_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA))
    return bool(ctypes.CDLL(None).syscall(number, request, feature) == 0)
