"""Memory and read rate of this machine and of common GPUs."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from mmserve.supervisor.startup import machine

_GB = 10**9
_READ_NBYTES = 128 << 20
"""By each thread; more than the caches."""
_READ_S = 0.3


class Hardware(NamedTuple):
    """``memory_nbytes`` and ``read_rate`` (bytes/s) are of one card, or of the machine."""

    name: str
    memory_nbytes: int
    read_rate: float
    is_gpu: bool
    source: str
    """Of the read rate."""


_GPUS = {
    "a100-40": ("A100 40 GB", 40, 1555),
    "a100-80": ("A100 80 GB", 80, 2039),
    "b200": ("B200", 180, 8000),
    "h100": ("H100 SXM", 80, 3350),
    "h200": ("H200", 141, 4800),
    "l4": ("L4", 24, 300),
    "l40s": ("L40S", 48, 864),
    "rtx4090": ("RTX 4090", 24, 1008),
    "rtx5090": ("RTX 5090", 32, 1792),
}
"""Name, GB and GB/s of their makers' data sheets. What is measured is a tenth to a fifth lower."""
GPU_NAMES = tuple(_GPUS)


def gpu(name: str) -> Hardware:
    """One of ``GPU_NAMES``."""
    title, memory, rate = _GPUS[name]
    return Hardware(title, memory * _GB, rate * _GB, True, "data sheet")


def this_machine(found: machine.Machine, memory_nbytes: int | None = None) -> Hardware:
    """Its free memory, or ``memory_nbytes``, and its read rate, which is measured for 0.3 s."""
    memory = found.memory_bytes if memory_nbytes is None else memory_nbytes
    cores = f"{found.num_cores} core{'' if found.num_cores == 1 else 's'}"
    return Hardware(cores, memory, read_rate(found.num_cores), False, "measured")


def read_rate(num_threads: int, seconds: float = _READ_S) -> float:
    """Bytes a second that so many threads read from memory together."""
    arrays = [np.ones(_READ_NBYTES // 8, dtype=np.int64) for _ in range(num_threads)]
    deadline_s = time.perf_counter() + seconds

    def read(array: np.ndarray) -> int:
        total = 0
        while not total or time.perf_counter() < deadline_s:
            np.bitwise_or.reduce(array)
            total += array.nbytes
        return total

    with ThreadPoolExecutor(num_threads) as pool:
        started_s = time.perf_counter()
        nbytes = sum(pool.map(read, arrays))
        return nbytes / (time.perf_counter() - started_s)
