"""Which layers of a quantized checkpoint are quantized, by the tensors that its files store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from msgspec import structs

from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.checkpoint.quantization.scheme import Layout, QuantizationScheme
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.stored_tensors import checkpoint_tensors
from mmserve.checkpoint.tensor_names import canonical_name
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.grouped_experts import alone
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.loader.stored_parts import stacked_experts
from mmserve.model_backend.platforms.interface import Platform
from mmserve.runtime.errors import StartupError

_MARKS: dict[Layout, tuple[str, Collection[str]]] = {
    "awq": (".qweight", {"I32"}),
    "gptq": (".qweight", {"I32"}),
    "packed": (".weight_packed", {"I32"}),
    "int8": (".weight", {"I8"}),
    "fp8": (".weight", {"F8_E4M3"}),
    "gguf": (".weight", QUANTIZED),
}
"""Suffix and dtypes of a tensor that each quantized matrix has."""
_UNUSED: dict[Layout, tuple[str, ...]] = {
    "awq": (),
    "gptq": (),
    "packed": (".weight_shape",),
    "int8": (),
    "fp8": (".input_scale", ".activation_scale"),
    "gguf": (),
}
"""Suffixes of tensors that say nothing new, or how inputs should be rounded, which are not for float8."""
_ORDER = (".g_idx", ".weight_g_idx")
_SCALE, _INVERSE = "_scale", "_inv"
"""Scales are multiplied with, whether or not they are called inverse."""


class QuantizedCheckpoint:
    """A checkpoint's quantized layers. Without a scheme it changes nothing."""

    def __init__(self, model: ModelSpec) -> None:
        self._scheme, self._family = model.quantization, model.family
        self._types = {} if self._scheme is None else _quantized(model, self._scheme)

    def canonical_name(self, stored: str) -> str | None:
        """As ``tensor_names.canonical_name``. None for tensors that say nothing new, too."""
        scheme, name = self._scheme, canonical_name(self._family, stored)
        if scheme is None or name is None:
            return name
        if name.endswith(_UNUSED[scheme.layout]) or (name.endswith(_ORDER) and not scheme.act_order):
            return None
        if scheme.layout == "fp8" and name.endswith(_SCALE + _INVERSE):
            return name.removesuffix(_INVERSE)
        return name

    def context(self, context: LayerContext, platform: Platform) -> LayerContext:
        """For the model's layers. Their construction raises StartupError for a layer that cannot be computed."""
        scheme = self._scheme
        if scheme is None:
            return context

        def linear_method(shape: LinearShape) -> LinearMethod:
            types = self._types_of(shape)
            if not types:
                return context.linear_method(shape)
            if len(types) < len(shape.names):
                names = ", ".join(shape.names)
                raise StartupError(f"of {names} some are quantised and some not, which is not supported")
            return platform.checkpoint_linear_method(structs.replace(scheme, types=types), shape)

        def embedding_method(shape: LinearShape) -> EmbeddingMethod:
            if not (types := self._types_of(shape)):
                return context.embedding_method(shape)
            return platform.checkpoint_embedding_method(structs.replace(scheme, types=types), shape)

        return replace(context, linear_method=linear_method, embedding_method=embedding_method, grouped_experts=alone)

    def _types_of(self, shape: LinearShape) -> tuple[str, ...]:
        """dtypes of those of a layer's matrices that are quantized."""
        return tuple(self._types[name] for name in shape.names if name in self._types)


def _quantized(model: ModelSpec, scheme: QuantizationScheme) -> dict[str, str]:
    """Canonical names of the quantized matrices, without a suffix, and their dtypes in the files."""
    suffix, dtypes = _MARKS[scheme.layout]
    found = {}
    for stored, tensor in checkpoint_tensors(Path(model.path)):
        if not tensor.is_stored_as(dtypes):
            continue
        name = canonical_name(model.family, stored) or stored
        if stored.endswith(suffix):
            found[name.removesuffix(suffix)] = tensor.dtype
        elif experts := stacked_experts(name, tensor.shape):
            _check_blocks(stored, tensor.shape[1:], scheme)
            found |= dict.fromkeys(chain.from_iterable(experts), tensor.dtype)
    return found


def _check_blocks(stored: str, matrix: Sequence[int], scheme: QuantizationScheme) -> None:
    """Experts that are stacked, perhaps transposed, are told apart by whole blocks. Raises StartupError."""
    height, width = scheme.block or (0, 1)
    if height != width or any(size % height for size in matrix):
        raise StartupError(
            f"{stored} stacks experts of {list(matrix)}, which is supported in FP8 with whole square blocks"
        )
