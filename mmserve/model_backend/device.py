"""Torch device, dtype and threads of one rank. Knows neither models nor messages."""

from __future__ import annotations

import torch

from mmserve.model_backend.native import kernels

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
