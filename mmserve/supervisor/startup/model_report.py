"""What a checkpoint is and what memory it will need, without starting a server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from mmserve.checkpoint.load import read_config
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import ModelImpl
from mmserve.config.deployment import DTYPE_BYTES
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.find_model import read_model

_DTYPES = ("bfloat16", "float32")


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """By dtype."""

    bfloat16: int
    float32: int


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served."""

    path: str
    architecture: str
    computed_by: Literal["mmserve", "transformers"]
    context: int
    """Tokens."""
    layers: int
    kv_heads: int
    head_dim: int
    quantization: str | None
    """Of the checkpoint's linear layers, which stay in their bits; None: not quantized."""
    weights_bytes: Bytes
    kv_bytes_per_token: Bytes
    """In one rank, by the dtype of the KV cache."""
    picture_rows: int | None
    """Tokens of the largest picture; None for a text model."""


def report(directory: Path, impl: ModelImpl) -> ModelReport:
    """Raises StartupError with the reason if it cannot be served."""
    model = read_model(directory, impl)
    config, text = read_config(directory), model.text
    token_nbytes = {dtype: plan.kv_token_nbytes(model, 1, DTYPE_BYTES[dtype]) for dtype in _DTYPES}
    return ModelReport(
        path=str(directory),
        architecture=str(next(iter(config.get("architectures") or []), config.get("model_type"))),
        computed_by="transformers" if model.family == "transformers" else "mmserve",
        context=text.max_position,
        layers=text.num_layers,
        kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        quantization=None if model.quantization is None else str(model.quantization),
        weights_bytes=_weights(model),
        kv_bytes_per_token=Bytes(**token_nbytes),
        picture_rows=_picture_rows(model),
    )


def _weights(model: ModelSpec) -> Bytes:
    """A quantized checkpoint takes the same with either dtype."""
    if model.quantization is not None:
        return Bytes(**dict.fromkeys(_DTYPES, plan.quantized_nbytes(model)))
    return Bytes(**{dtype: plan.num_stored_weights(model) * DTYPE_BYTES[dtype] for dtype in _DTYPES})


def _picture_rows(model: ModelSpec) -> int | None:
    # Imported here: numpy and Pillow would slow down a start.
    from mmserve.processors.registry import processor_for

    processor = processor_for(model)
    return None if processor is None else processor.max_rows
