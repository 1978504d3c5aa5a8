"""Which layers of a quantized checkpoint are quantized, by the tensors that its files store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
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
_INVERSE_SCALE, _SCALE = ".weight_scale_inv", ".weight_scale"
"""Both are multiplied with."""


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
        if scheme.layout == "fp8" and name.endswith(_INVERSE_SCALE):
            return name.removesuffix(_INVERSE_SCALE) + _SCALE
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
    return {
        (canonical_name(model.family, name) or name).removesuffix(suffix): tensor.dtype
        for name, tensor in checkpoint_tensors(Path(model.path))
        if name.endswith(suffix) and tensor.is_stored_as(dtypes)
    }
