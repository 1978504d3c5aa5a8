"""What a checkpoint's weights take in memory once they are loaded, by the headers of its files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.stored_tensors import StoredTensor, checkpoint_tensors
from mmserve.checkpoint.tensor_names import canonical_name
from mmserve.config.fields import Quantization
from mmserve.config.resolved.deployment import DTYPE_BYTES, Dtype

_QUANTIZED_BITS = {"int8": (8.5, 8.5), "int4": (5.0, 8.5), "fp8": (8.0, 16.0)}
"""Of a weight of a layer, and of one of embedding and head, with their part of the scales."""
_FLOAT_DTYPES = ("F64", "F32", "BF16", "F16")
"""As safetensors calls them."""
_HEAD = "text.lm_head.weight"


class PartBytes(NamedTuple):
    """Of all ranks together, and of one visual server, which holds tower and projector."""

    text: int
    tower: int


def part_nbytes(model: ModelSpec, dtype: Dtype) -> PartBytes:
    """``dtype``: of the model's numbers. Codes of a quantized checkpoint take what they take in the files.

    Of a model that transformers' modules compute all counts as text. Raises StartupError if a file is not readable.
    """
    text = tower = 0
    for name, tensor in _needed(model):
        nbytes = tensor.num_elements * DTYPE_BYTES[dtype] if tensor.dtype in _FLOAT_DTYPES else tensor.nbytes
        if name.startswith("text."):
            text += nbytes
        else:
            tower += nbytes
    return PartBytes(text, tower)


def loaded_nbytes(model: ModelSpec, dtype: Dtype, quantization: Quantization) -> int:
    """Of all processes together, when the weights are loaded. ``quantization``: of the server (--quantization)."""
    return quantized_nbytes(model, sum(part_nbytes(model, dtype)), dtype, quantization)


def quantized_nbytes(model: ModelSpec, stored_nbytes: int, dtype: Dtype, quantization: Quantization) -> int:
    """Of weights that take ``stored_nbytes`` in ``dtype``, when ``quantization`` has been applied."""
    if quantization == "none":
        return stored_nbytes
    text, element_nbytes = model.text, DTYPE_BYTES[dtype]
    heads = (2 * text.num_heads + 2 * text.num_kv_heads) * text.head_dim
    layers = text.num_layers * text.hidden_size * heads + text.num_mlp_weights
    embedding = text.vocab_size * text.hidden_size
    tables = embedding if text.tie_embeddings else 2 * embedding
    of_layers, of_tables = _QUANTIZED_BITS[quantization]
    quantized = layers * of_layers + tables * of_tables
    largest = max(embedding, 2 * max(text.intermediate_sizes) * text.hidden_size)  # not quantized at first
    largest_nbytes = largest * DTYPE_BYTES[dtype if quantization == "fp8" else "float32"]
    others_nbytes = max(0, stored_nbytes - (layers + tables) * element_nbytes)
    return int(quantized / 8) + others_nbytes + largest_nbytes


def _needed(model: ModelSpec) -> Iterator[tuple[str, StoredTensor]]:
    """By canonical name, without constants and the copy of a tied head."""
    for stored, tensor in checkpoint_tensors(Path(model.path)):
        name = canonical_name(model.family, stored)
        if name is not None and not (name == _HEAD and model.text.tie_embeddings):
            yield name, tensor
