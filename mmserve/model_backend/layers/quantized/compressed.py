"""compressed-tensors' whole numbers, packed (``weight_packed``, 4 or 8 bits) or as int8 (``weight``), and float8.

Packed are int32 [out, in bits / 32], and zero points int32 [out bits / 32, groups]; both are stored plus half of their
range. ``weight_scale`` is [out, groups]; of int8 and float8 it may be one number, or (float8) one a block.
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
from mmserve.model_backend.layers.quantized.per_matrix import MatrixScales
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.runtime.errors import StartupError


class PackedTensors:
    """See ``stored.StoredTensors``."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._scheme, self._in_size = scheme, shape.in_size
        self._per_word = WORD_BITS // scheme.bits
        groups = groups_of(shape.in_size, scheme.group_size)
        self._packed = torch.empty(shape.out_size, -(-shape.in_size // self._per_word), dtype=torch.int32)
        self._scales = torch.empty(shape.out_size, groups)
        words = -(-shape.out_size // self._per_word)
        self._zeros = torch.empty(words, groups, dtype=torch.int32) if scheme.zero_points else None
        self._order = InputOrder(shape) if scheme.act_order else None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        per_word, group = self._per_word, self._scheme.group_size or shard.shape[1]
        yield f"{shard.name}.weight_packed", target_of(self._packed, shard, Axes(0, per_input=per_word))
        yield f"{shard.name}.weight_scale", target_of(self._scales, shard, Axes(0, per_input=group))
        if self._zeros is not None:
            yield f"{shard.name}.weight_zero_point", target_of(self._zeros, shard, Axes(0, per_word, group))
        if self._order is not None:
            yield f"{shard.name}.weight_g_idx", self._order.target(shard)

    def matrix(self) -> QuantizedMatrix:
        scheme, group = self._scheme, self._scheme.group_size or self._in_size
        codes = unpacked(self._packed, scheme.bits).flatten(1)[:, : self._in_size]
        zeros = torch.full_like(self._scales, 1 << scheme.bits - 1, dtype=torch.int16)
        if self._zeros is not None:
            zeros = unpacked(self._zeros.T, scheme.bits).flatten(1)[:, : len(codes)].T.to(torch.int16)
        order = None if self._order is None else self._order.of_groups(group)
        if order is not None:
            codes = codes[:, order]
        return QuantizedMatrix(codes, self._scales, zeros, group, scheme.bits, order=order)


class Int8Tensors:
    """See ``stored.StoredTensors``. Zero points are int8, as the weights."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._scheme = scheme
        groups = groups_of(shape.in_size, scheme.group_size)
        self._weight = torch.empty(shape.out_size, shape.in_size, dtype=torch.int8)
        self._scales = torch.empty(shape.out_size, groups)
        self._zeros = torch.empty(shape.out_size, groups, dtype=torch.int8) if scheme.zero_points else None
        self._own_scales = MatrixScales(None) if scheme.per_tensor else None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        group, in_size = self._scheme.group_size or shard.shape[1], self._weight.shape[1]
        if self._scheme.rounds_inputs and in_size < shard.shape[1]:
            raise StartupError(f"{shard.name} rounds whole rows of its inputs, which is supported with --tp 1 alone")
        yield f"{shard.name}.weight", target_of(self._weight, shard, Axes(0))
        if self._own_scales is not None:
            yield f"{shard.name}.weight_scale", self._own_scales.target(shard, in_size)
        else:
            yield f"{shard.name}.weight_scale", target_of(self._scales, shard, Axes(0, per_input=group))
        if self._zeros is not None:
            yield f"{shard.name}.weight_zero_point", target_of(self._zeros, shard, Axes(0, per_input=group))

    def matrix(self) -> QuantizedMatrix:
        out_size, in_size = self._weight.shape
        scales = self._scales if self._own_scales is None else self._own_scales.of_outputs(out_size)
        zeros = torch.zeros_like(scales, dtype=torch.int16) if self._zeros is None else self._zeros.short()
        codes = self._weight.view(torch.uint8) ^ 128  # plus 128
        group = self._scheme.group_size or in_size
        return QuantizedMatrix(codes, scales, zeros + 128, group, 8, rounds_inputs=self._scheme.rounds_inputs)


class Float8Tensors:
    """See ``stored.StoredTensors``."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._block, self._name = scheme.block, ", ".join(shape.names)
        self._weight = torch.empty(shape.out_size, shape.in_size, dtype=torch.float8_e4m3fn)
        self._scales = torch.empty(shape.out_size, 1)
        shared = scheme.per_tensor or scheme.block is not None
        self._own_scales = MatrixScales(scheme.block) if shared else None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        yield f"{shard.name}.weight", target_of(self._weight, shard, Axes(0))
        if self._own_scales is not None:
            yield f"{shard.name}.weight_scale", self._own_scales.target(shard, self._weight.shape[1])
        else:
            yield f"{shard.name}.weight_scale", target_of(self._scales, shard, Axes(0, per_input=shard.shape[1]))

    def matrix(self) -> QuantizedMatrix:
        """Raises StartupError if a weight is NaN."""
        out_size, in_size = self._weight.shape
        codes = self._weight.view(torch.uint8)
        if bool((codes & 127 == 127).any()):
            raise StartupError(f"{self._name} has weights that are NaN: the checkpoint is damaged")
        scales = self._scales if self._own_scales is None else self._own_scales.of_outputs(out_size)
        group = in_size if self._block is None else self._block[1]
        return QuantizedMatrix(codes, scales, torch.zeros_like(scales, dtype=torch.int16), group, 8, is_float8=True)
