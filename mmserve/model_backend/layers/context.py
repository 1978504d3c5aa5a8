"""What the layers of one model are built with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.grouped_experts import ExpertsShape, GroupedExperts, alone
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Ops


@dataclass(frozen=True)
class LayerContext:
    """Made by a platform (``Platform.layer_context``) and handed to every layer at construction."""

    ops: Ops
    linear_method: Callable[[LinearShape], LinearMethod]
    embedding_method: Callable[[LinearShape], EmbeddingMethod]
    dtype: torch.dtype
    device: torch.device
    tp: TpGroup
    grouped_experts: Callable[[ExpertsShape], GroupedExperts | None] = alone
    """None: each expert of a mixture is a layer of its own."""
    max_mlp_rows: int | None = None
    """Rows of an MLP computed at once; None: all. Its inner activations are several times as wide as a row."""
    prefix: str = ""
    """Put before the tensor names of the layers that are made with this context."""

    def below(self, prefix: str) -> LayerContext:
        """For the parts of one module: ``prefix`` is added to the tensor names."""
        return replace(self, prefix=self.prefix + prefix)

    def empty(self, *shape: int) -> torch.Tensor:
        """An uninitialised parameter."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)
