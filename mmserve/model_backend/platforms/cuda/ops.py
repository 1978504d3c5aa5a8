"""Operations on activations on a GPU: Triton kernels where there are some, else torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import torch

from mmserve.model_backend.platforms.cuda.attention.encoder import EncoderAttention
from mmserve.model_backend.platforms.cuda.attention.self_test import checked_encoder
from mmserve.model_backend.platforms.cuda.fp8.ops import Fp8Ops
from mmserve.model_backend.platforms.cuda.row_ops import working_kernels

_working_kernels = lru_cache(working_kernels)

logger = logging.getLogger(__name__)


class TritonOps(Fp8Ops):
    """See ``layers.ops.Ops``. Kernels are tested before they are used: those of rows at once, the towers' when it first
    meets heads of a size."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.tested = _working_kernels(device)
        self._encoder = lru_cache(None)(self._tested_encoder)

    def encoder_attention(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        attention = self._encoder(qkv.shape[1] // 3 // num_heads, qkv.dtype)
        if attention is None:
            return super().encoder_attention(qkv, num_heads, lengths)
        return attention(qkv, num_heads, lengths)

    def _tested_encoder(self, head_dim: int, dtype: torch.dtype) -> EncoderAttention | None:
        found = checked_encoder(head_dim, dtype, self._device)
        if isinstance(found, str):
            logger.warning("attention of the vision tower is computed by torch: %s", found)
            return None
        return found
