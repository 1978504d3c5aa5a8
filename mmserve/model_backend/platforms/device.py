"""Torch device, dtype and threads of one rank. Knows neither models nor messages."""

from __future__ import annotations

import torch

from mmserve.model_backend.platforms.cpu import kernels

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HARMLESS = (1, 2, 9, 701)
"""CUDA's errors that concern one call alone: invalid value, out of memory, invalid configuration, too many resources
for a launch."""


def torch_device(kind: str, rank: int = 0) -> torch.device:
    """``cpu``, or the rank's GPU; ranks share GPUs in turn when there are more ranks than GPUs."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


def use_threads(count: int) -> None:
    """Let this process compute with so many threads, at least one."""
    threads = max(1, count)
    torch.set_num_threads(threads)
    kernels.set_threads(threads)


def is_lost(error: Exception) -> bool:
    """Is the device lost to this process? After most errors of CUDA itself, such as an illegal access, whatever it is
    asked for fails as well, until the process is started again."""
    return isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", None) not in _HARMLESS
