"""The device of a run, and random tensors on it."""

from __future__ import annotations

import torch

from benchmarks.gpu.checks import Settings, Skipped


def device_of(settings: Settings) -> torch.device:
    """Raises Skipped without a GPU."""
    if settings.device == "cpu":
        torch.set_num_threads(1)  # small shapes, on a machine that may have other work
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise Skipped("needs a GPU that torch can use; --device cpu is the dry run")
    return torch.device("cuda", 0)


def generator(settings: Settings, device: torch.device) -> torch.Generator:
    """Of this run's inputs."""
    return torch.Generator(device).manual_seed(settings.seed)


def exact_float32() -> None:
    """Products of float32 in float32, as a CPU computes them: no TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
