"""``--attention-backend flashinfer``: what it needs, by name."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from mmserve.config.resolved.gpu_capability import AMPERE, Capability, in_words
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.platforms.cuda.flashinfer.backend import FlashInferAttention
from mmserve.model_backend.transfers import Transfers
from mmserve.runtime.errors import StartupError

_DIMS = (64, 128, 256)
_DTYPES = (torch.float16, torch.bfloat16)


def flashinfer_attention(
    spec: AttentionSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    capability: Capability,
    transfers: Transfers,
) -> FlashInferAttention:
    """Raises StartupError if the package is not there, or cannot compute this."""
    if problem := _problem(spec, dtype, kv_dtype, capability):
        raise StartupError(f"--attention-backend flashinfer: {problem}; choose triton, or leave the option out")
    return FlashInferAttention(import_module("flashinfer"), spec, dtype, transfers)


def _problem(spec: AttentionSpec, dtype: torch.dtype, kv_dtype: torch.dtype, capability: Capability) -> str:
    if capability < AMPERE:
        return f"this GPU's compute capability is {in_words(capability)}, and it needs {in_words(AMPERE)}"
    if spec.head_dim not in _DIMS:
        return f"the model's heads have {spec.head_dim} numbers, and it knows {', '.join(map(str, _DIMS))}"
    if any(mask.whole_images for mask in spec.masks):
        return "the model's image tokens see those behind them, which it does not know"
    if dtype not in _DTYPES:
        return f"it computes in float16 and bfloat16, not in {str(dtype).removeprefix('torch.')}"
    if kv_dtype != dtype:
        return f"the KV cache must be in {str(dtype).removeprefix('torch.')}: leave out --kv-cache-dtype"
    if find_spec("flashinfer") is None:
        return "FlashInfer is not installed (pip install 'mmserve[flashinfer]')"
    return ""
