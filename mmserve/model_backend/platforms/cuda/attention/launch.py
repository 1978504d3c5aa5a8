"""Where and how Triton launches kernels."""

from __future__ import annotations

import torch
import triton

_NUMBERS_OF_A_WARP = 512


def current_gpu(tensor: torch.Tensor) -> torch.cuda.device_of:
    """Within it the tensor's GPU is the current one of this thread, as Triton needs it. On a CPU it does nothing."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def warps_of_row(size: int) -> int:
    """Of a program that holds a row of so many numbers."""
    warps: int = min(16, max(1, triton.next_power_of_2(size) // _NUMBERS_OF_A_WARP))
    return warps
