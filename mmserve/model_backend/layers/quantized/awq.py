"""AWQ's tensors: ``qweight`` int32 [in, out / 8], ``qzeros`` int32 [groups, out / 8] and ``scales`` [groups, out].

Eight outputs share a word, first those of even numbers, then the odd ones.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.layers.quantized.packed_words import unpacked
from mmserve.model_backend.layers.quantized.parts import Axes, groups_of, target_of
from mmserve.model_backend.layers.target import LinearShard, Target

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Of each output among the eight codes of its word."""
_PER_WORD = len(_PLACES)


class AwqTensors:
    """See ``stored.StoredTensors``."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._group_size = scheme.group_size
        groups = groups_of(shape.in_size, scheme.group_size)
        words = -(-shape.out_size // _PER_WORD)
        self._qweight = torch.empty(shape.in_size, words, dtype=torch.int32)
        self._qzeros = torch.empty(groups, words, dtype=torch.int32)
        self._scales = torch.empty(groups, shape.out_size)

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        group = self._group_size or shard.shape[1]
        yield f"{shard.name}.qweight", target_of(self._qweight, shard, Axes(1, _PER_WORD))
        yield f"{shard.name}.qzeros", target_of(self._qzeros, shard, Axes(1, _PER_WORD, group))
        yield f"{shard.name}.scales", target_of(self._scales, shard, Axes(1, per_input=group))

    def matrix(self) -> QuantizedMatrix:
        in_size, out_size = len(self._qweight), self._scales.shape[1]
        codes, zeros = (unpacked(words, 4)[..., _PLACES].flatten(1) for words in (self._qweight, self._qzeros))
        zeros = zeros[:, :out_size].T.to(torch.int16)
        return QuantizedMatrix(codes[:, :out_size].T, self._scales.T, zeros, self._group_size or in_size, bits=4)
