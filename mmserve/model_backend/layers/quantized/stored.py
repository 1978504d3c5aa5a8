"""The tensors that a quantized checkpoint stores for one linear layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from mmserve.checkpoint.quantization.scheme import Layout, QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.awq import AwqTensors
from mmserve.model_backend.layers.quantized.compressed import Float8Tensors, Int8Tensors, PackedTensors
from mmserve.model_backend.layers.quantized.gptq import GptqTensors
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.layers.target import LinearShard, Target


class StoredTensors(Protocol):
    """Of this rank's part of a layer. The constructor allocates them."""

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        """As ``LinearMethod.targets``. Raises StartupError if a rank's part cannot be cut out."""
        ...

    def matrix(self) -> QuantizedMatrix:
        """What they stand for, once they are loaded."""
        ...


_BY_LAYOUT: dict[Layout, Callable[[QuantizationScheme, LinearShape], StoredTensors]] = {
    "awq": AwqTensors,
    "gptq": GptqTensors,
    "packed": PackedTensors,
    "int8": Int8Tensors,
    "fp8": Float8Tensors,
}


def stored_tensors(scheme: QuantizationScheme, shape: LinearShape) -> StoredTensors:
    return _BY_LAYOUT[scheme.layout](scheme, shape)
