"""The linear method for layers that the checkpoint stores quantized. They stay in their bits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.stored import stored_tensors
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cpu.linear import grouped_weights
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear, free
from mmserve.model_backend.platforms.cpu.linear.quantization import GROUP, PANEL
from mmserve.runtime.errors import StartupError


class CheckpointLinear(PackedLinear):
    """See ``LinearMethod``."""

    def __init__(self, kernels: ctypes.CDLL, scheme: QuantizationScheme, shape: LinearShape) -> None:
        super().__init__(kernels, shape)
        if shape.out_size % PANEL or shape.in_size % GROUP:
            raise StartupError(
                f"quantised layers must have a multiple of {PANEL} outputs and {GROUP} inputs on each rank, "
                f"not {shape.out_size} and {shape.in_size} ({', '.join(shape.names)})"
            )
        self._stored = stored_tensors(scheme, shape)
        self._loaded: list[torch.Tensor] = []

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        for name, target in self._stored.targets(shard):
            self._loaded.append(target.into)
            yield name, target

    def finish_loading(self) -> None:
        matrix = self._stored.matrix()
        self.packed, self.format = grouped_weights.pack(matrix), grouped_weights.format_of(matrix)
        for stored in self._loaded:
            free(stored)
        del self._stored, self._loaded
