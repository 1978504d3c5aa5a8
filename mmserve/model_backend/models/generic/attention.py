"""Attention of transformers' modules, computed by an attention backend over the paged KV cache.

transformers' modules call a function by name with Q, K and V of one layer. It finds the step that is being computed in
a context variable, because not all modules pass other arguments on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface

from mmserve.model_backend.attention.interface import AttentionBackend, Mask

NAME = "mmserve_paged"
"""Of this implementation, in transformers. No mask is registered by this name, so the modules make none."""


@dataclass(frozen=True)
class PagedStep:
    """One forward pass: what each layer's attention needs besides Q, K and V."""

    backend: AttentionBackend[Any]
    masks: Sequence[Mask]
    """Of each layer."""
    scale: float
    """The backend's, of the products of queries and keys."""
    kv_cache: torch.Tensor
    """[layers, *kv_shape of the backend]."""
    metadata: Any

    def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Each [heads, T, dim] -> [T, heads, dim]."""
        heads, kv_heads = len(q), len(k)
        # The backend wants views into one tensor, K and V of a token next to each other.
        fused = torch.cat((q, k, v)).transpose(0, 1).contiguous()
        kv = fused[:, heads:].view(len(fused), 2, kv_heads, -1)
        return self.backend.forward(fused[:, :heads], kv, self.kv_cache[layer], self.metadata, self.masks[layer])


_STEP: ContextVar[PagedStep] = ContextVar("the step whose layers are being computed")


@contextmanager
def computing(step: PagedStep) -> Iterator[None]:
    """Within the context, modules whose implementation is ``NAME`` compute this step."""
    token = _STEP.set(step)
    try:
        yield
    finally:
        _STEP.reset(token)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    scaling: float | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: Q, K and V [1, heads, T, dim] -> [1, T, heads, dim] and no weights.

    Masks are those of the step: ``probe`` has found them. Where layers differ in their scale, the queries carry the
    difference to the backend's.
    """
    step = _STEP.get()
    factor = (query.shape[-1] ** -0.5 if scaling is None else scaling) / step.scale
    if not math.isclose(factor, 1.0, rel_tol=1e-6):
        query = query * factor
    return step.attend(module.layer_idx, query[0], key[0], value[0])[None], None


AttentionInterface.register(NAME, _attend)
