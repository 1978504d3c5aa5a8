"""GPTQ's tensors: ``qweight`` int32 [in bits / 32, out], ``qzeros`` int32 [groups, out bits / 32], ``scales`` [groups,
out] and ``g_idx`` int32 [in], the group of each input.

Codes are packed along the inputs, zero points along the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.input_order import InputOrder
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.layers.quantized.packed_words import WORD_BITS, unpacked
from mmserve.model_backend.layers.quantized.parts import Axes, groups_of, target_of
from mmserve.model_backend.layers.target import LinearShard, Target


class GptqTensors:
    """See ``stored.StoredTensors``."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._scheme, self._in_size = scheme, shape.in_size
        self._per_word = WORD_BITS // scheme.bits
        groups = groups_of(shape.in_size, scheme.group_size)
        self._qweight = torch.empty(-(-shape.in_size // self._per_word), shape.out_size, dtype=torch.int32)
        self._qzeros = torch.empty(groups, -(-shape.out_size // self._per_word), dtype=torch.int32)
        self._scales = torch.empty(groups, shape.out_size)
        self._order = InputOrder(shape) if scheme.act_order else None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        per_word, group = self._per_word, self._scheme.group_size or shard.shape[1]
        yield f"{shard.name}.qweight", target_of(self._qweight, shard, Axes(1, per_input=per_word))
        yield f"{shard.name}.qzeros", target_of(self._qzeros, shard, Axes(1, per_word, group))
        yield f"{shard.name}.scales", target_of(self._scales, shard, Axes(1, per_input=group))
        if self._order is not None:
            yield f"{shard.name}.g_idx", self._order.target(shard)

    def matrix(self) -> QuantizedMatrix:
        scheme, in_size = self._scheme, self._in_size
        out_size, group = self._scales.shape[1], scheme.group_size or in_size
        codes = unpacked(self._qweight, scheme.bits).permute(1, 0, 2).flatten(1)[:, :in_size]
        zeros = unpacked(self._qzeros, scheme.bits).flatten(1)[:, :out_size].T.to(torch.int16)
        order = None if self._order is None else self._order.of_groups(group)
        if order is not None:
            codes = codes[:, order]
        return QuantizedMatrix(codes, self._scales.T, self._true_zeros(zeros), group, scheme.bits, order=order)

    def _true_zeros(self, zeros: torch.Tensor) -> torch.Tensor:
        """Some symmetric checkpoints say that they are of version 1 and store the zero points of version 2."""
        middle = 1 << self._scheme.bits - 1
        if not self._scheme.zero_points and bool((zeros == middle).all()):
            return zeros
        return zeros + self._scheme.zero_offset
