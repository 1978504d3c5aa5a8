"""The kernels' own threads, and how they share the cores with other processes."""

from __future__ import annotations

import ctypes

_read_by_kernels: list[object] = []
"""The array whose address the kernels have."""


def set_threads(kernels: ctypes.CDLL, count: int) -> None:
    """Compute with at least ``count`` threads from now on, the caller's included. Threads are never ended."""
    kernels.mm_set_threads(count)


def share_cores(
    kernels: ctypes.CDLL, busy_cores: ctypes.Array[ctypes.c_int32], *, among: int = 1, at_least: int = 1
) -> None:
    """See ``Platform.share_cores``."""
    kernels.mm_leave(ctypes.addressof(busy_cores), len(busy_cores), among, at_least)
    _read_by_kernels[:] = [busy_cores]  # after the call: until then they read the previous one
