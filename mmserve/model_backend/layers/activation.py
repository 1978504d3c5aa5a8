"""Activations by the names that config.json uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from mmserve.model_backend.platforms.cpu import kernels
from mmserve.runtime.errors import StartupError


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    if kernels.usable(x) and x.is_contiguous() and x.shape[-1] % 8 == 0:
        return kernels.quick_gelu_(x)
    return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "quick_gelu": _quick_gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


SILU = frozenset(name for name, act in _ACTIVATIONS.items() if act is F.silu)


def gate(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """[T, 2 * size], gate before up -> act(gate) * up [T, size]."""
    act = activation(name)

    def gated(x: torch.Tensor) -> torch.Tensor:
        if act is F.silu and kernels.usable(x) and x.shape[-1] % 16 == 0:
            return kernels.silu_gate(x)
        opening, up = x.chunk(2, dim=-1)
        return act(opening).mul_(up)

    return gated


def activation(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function called ``name``, which may write over what it is given. Raises StartupError for an unknown one."""
    if name not in _ACTIVATIONS:
        raise StartupError(f"the model's activation {name} is not supported; known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]
