"""A full memory barrier, for the few places where a process reads shared memory that another one writes.

x86 keeps loads in order among themselves, and stores; this is all that the arena needs, so nothing is done there.
Other processors (ARM) reorder both. Python has no barrier; the kernel's membarrier(2) executes one in this thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable

_GLOBAL_EXPEDITED = 2
"""Also reaches processes that registered for it; there are none, so it only acts on the calling thread."""
_SYSCALLS = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365}
_libc = ctypes.CDLL(None, use_errno=True)


def membarrier() -> None:
    """Raises OSError if the kernel or a sandbox refuses the call."""
    if _libc.syscall(_SYSCALLS[platform.machine()], _GLOBAL_EXPEDITED, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"membarrier: {os.strerror(ctypes.get_errno())}")


def _nothing() -> None:
    return None


fence: Callable[[], None] = _nothing if platform.machine() == "x86_64" else membarrier
"""Loads and stores before the call are complete before those after it begin."""
