"""Features of an AArch64 CPU that Linux lets programs use: bits of the auxiliary vector."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_HWCAP, _HWCAP2 = 16, 26
"""Numbers of ``getauxval``."""
_BITS = {
    "fp": (_HWCAP, 0),
    "asimd": (_HWCAP, 1),
    "crc32": (_HWCAP, 7),
    "atomics": (_HWCAP, 8),
    "asimdrdm": (_HWCAP, 12),
    "i8mm": (_HWCAP2, 13),
    "bf16": (_HWCAP2, 14),
}
"""By the names that ``/proc/cpuinfo`` has for them; those that a level needs."""


def found(word: Callable[[int], int] | None = None) -> set[str]:
    """Names of the features of this CPU. ``word``: reads a number of the auxiliary vector; default: ``getauxval``."""
    read = word or _getauxval()
    return {name for name, (number, bit) in _BITS.items() if read(number) >> bit & 1}


def _getauxval() -> Callable[[int], int]:
    function = ctypes.CDLL(None).getauxval
    function.argtypes, function.restype = (ctypes.c_ulong,), ctypes.c_ulong
    return lambda number: int(function(number))
