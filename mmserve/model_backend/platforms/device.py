"""Chooses the platform of a process, and tells what an error says about its device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.config.fields import AttentionChoice, KernelLevel
from mmserve.config.resolved.gpu_memory import card_of
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.runtime.errors import StartupError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
KV_DTYPES = DTYPES | {"fp8": torch.float8_e4m3fn}
_RECOVERABLE_ERRORS = (1, 2, 9, 701)
"""Errors of one call alone: invalid value, out of memory, invalid configuration, too many resources for a launch."""


def platform_for(
    device: str,
    dtype: str,
    rank: int = 0,
    activation_dtype: str | None = None,
    *,
    kernel_level: KernelLevel = "auto",
    attention: AttentionChoice = "auto",
    cards: Sequence[int] = (),
) -> Platform:
    """``device``: cpu or cuda. Ranks share GPUs round-robin when there are more ranks than GPUs. ``cards``: only these.

    ``activation_dtype``: see ``CpuPlatform``; a GPU has one dtype. Raises StartupError without a GPU, and for a CPU
    without ``kernel_level``. ``attention``: on a GPU.
    """
    if device == "cpu":
        return CpuPlatform(DTYPES[dtype], DTYPES.get(activation_dtype or ""), kernel_level)
    if not (num_gpus := torch.cuda.device_count()):
        raise StartupError("torch finds no GPU: use --device cpu, or check the driver and CUDA_VISIBLE_DEVICES")
    try:
        return CudaPlatform(torch.device("cuda", card_of(rank, cards, num_gpus)), DTYPES[dtype], attention)
    except ValueError as error:
        raise StartupError(f"--visual-devices: {error}") from error


def shapes_alone(dtype: str = "float32") -> Platform:
    """A platform whose tensors have shapes and no memory (torch's meta device): for looking at a model's parameters."""
    return TorchPlatform(torch.device("meta"), DTYPES[dtype])


def is_out_of_memory(error: BaseException) -> bool:
    """True if memory ran out, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # torch has no error type of its own for host memory.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def is_fatal_device_error(error: Exception) -> bool:
    """True if the process can no longer use its device.

    After most CUDA errors, such as an illegal access, every later call fails as well until the process restarts.
    """
    return isinstance(error, torch.AcceleratorError) and getattr(error, "error_code", None) not in _RECOVERABLE_ERRORS
