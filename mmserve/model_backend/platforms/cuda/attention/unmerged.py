"""Attention of a step whose splits are not added up yet: in 16 bits or float32 here, in FP8 by ``fp8.launches``."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.attention.metadata import Partials
from mmserve.model_backend.platforms.cuda.attention.tiling import padded
from mmserve.model_backend.platforms.cuda.kernels.paged_splits import merge_splits


class Unmerged(NamedTuple):
    """Valid until the next layer's attention."""

    out: torch.Tensor
    """[T, heads, dim]: the rows that are not merged are there."""
    partials: Partials
    record: torch.Tensor
    merges: int | None
    """The section of the record with the merges. None: no row is merged."""
    num_programs: int

    def merged(self) -> torch.Tensor:
        """[T, heads, dim]."""
        heads, dim = self.out.shape[1:]
        if self.merges is not None:
            with current_gpu(self.out):
                merge_splits[(self.num_programs,)](
                    *(self.partials.totals, self.partials.weights, self.record, self.out),
                    HEADS=heads,
                    DIM=dim,
                    PADDED_DIM=padded(dim),
                    MERGES=self.merges,
                )
        return self.out
