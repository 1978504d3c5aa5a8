"""The fastest attention for a model on this device."""

from __future__ import annotations

import torch

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention import paged_cpu
from mmserve.model_backend.attention.interface import Attention
from mmserve.model_backend.attention.sdpa import SdpaAttention


def attention_for(spec: TextSpec, like: torch.Tensor) -> Attention:
    """``like`` gives dtype and device."""
    group_size = spec.num_heads // spec.num_kv_heads
    if paged_cpu.fits(like, group_size, spec.head_dim):
        return paged_cpu.PagedCpuAttention(group_size)
    return SdpaAttention()
