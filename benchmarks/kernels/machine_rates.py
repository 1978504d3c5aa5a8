"""What this machine can do at most: bytes read a second, multiplications and additions a second. Used by benchmarks."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.model_backend.platforms.cpu.threads import set_threads

SQUARE = 2048
"""Of the matrix whose product shows torch's best rate."""
_ROWS, _READ_NBYTES = 64, 256 << 20
_PAUSE_S = 0.03
"""Before each measurement: threads of the variant before spin for some time."""


def read_rate(threads: int, rounds: int) -> float:
    """Bytes a second, of rows that are looked at once (``mm_finite``)."""
    set_threads(build.build_and_load(levels.of_this_cpu()[0]), threads)
    return _READ_NBYTES / least_s({"": reading(_READ_NBYTES)}, 3 * rounds)[""]


def reading(nbytes: int) -> Callable[[], None]:
    """Reads so many bytes, rounded down to a multiple of 256, once, with the threads that the kernels have."""
    rows, size = _ROWS, nbytes // _ROWS // torch.float32.itemsize
    numbers = weight_memory.empty((rows, size), torch.float32).fill_(1.0)  # written, or all reads are of one page
    finite = torch.empty(rows, dtype=torch.bool)
    kernels = build.build_and_load(levels.of_this_cpu()[0])
    return lambda: kernels.mm_finite(numbers.data_ptr(), size, rows, size, finite.data_ptr())


def square_rate(dtype: torch.dtype, rounds: int) -> float:
    """Floating-point operations a second of torch's product of two square matrices, with torch's threads."""
    x, weight = (torch.randn(SQUARE, SQUARE).to(dtype) for _ in range(2))
    return 2 * SQUARE**3 / least_s({"": lambda: F.linear(x, weight)}, rounds)[""]


def least_s(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The least seconds of each variant. They take turns within each round; the first round is a warm-up."""
    least = dict.fromkeys(variants, float("inf"))
    for number in range(rounds + 1):
        for name, run in variants.items():
            time.sleep(_PAUSE_S)
            started_s = time.perf_counter()
            run()
            if number:
                least[name] = min(least[name], time.perf_counter() - started_s)
    return least
