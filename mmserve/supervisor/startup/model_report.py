"""What a checkpoint is and what memory it will need, without starting a server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from mmserve.checkpoint.load import read_config
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config, ModelImpl
from mmserve.config.deployment import DTYPE_BYTES, Dtype, embed_row_nbytes
from mmserve.ipc.arena import extent_nbytes
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.find_model import read_model
from mmserve.supervisor.startup.weight_memory import PartBytes, part_nbytes

_DTYPES: tuple[Dtype, ...] = ("bfloat16", "float32")


class Bytes(msgspec.Struct, frozen=True, kw_only=True):
    """By dtype."""

    bfloat16: int
    float32: int


class PictureReport(msgspec.Struct, frozen=True, kw_only=True):
    """Pictures as large as the image processor makes them."""

    rows: int
    """Tokens of the largest."""
    embedding_bytes: Bytes
    """Of its rows, by their dtype, which is float32 in mmserve's own code on a CPU."""
    tower_weights_bytes: Bytes | None
    """Of each visual server; None if transformers' modules compute the model: its weights are not told apart."""
    fit_into_arena: int
    """Embeddings of the largest that the arena has room for."""


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served, and the memory of a server without options."""

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
    """Of the language model and the vision tower."""
    kv_bytes_per_token: Bytes
    """In one rank, by the dtype of the KV cache."""
    kv_bytes_of_context: Bytes
    """The least KV cache of a server whose context is the model's."""
    pictures: PictureReport | None
    """None for a text model."""
    arena_bytes: int
    """Shared memory for pictures and their embeddings."""
    total_bytes: Bytes
    """Weights, KV cache of one context, and arena."""


def report(directory: Path, impl: ModelImpl) -> ModelReport:
    """Raises StartupError with the reason if it cannot be served."""
    model = read_model(directory, impl)
    config, text = read_config(directory), model.text
    parts = {dtype: part_nbytes(model, "float32" if model.quantization else dtype) for dtype in _DTYPES}
    token_nbytes = {dtype: plan.kv_token_nbytes(model, 1, DTYPE_BYTES[dtype]) for dtype in _DTYPES}
    kv_nbytes = {dtype: nbytes * text.max_position for dtype, nbytes in token_nbytes.items()}
    arena_nbytes = plan.arena_size(Config(), model)
    return ModelReport(
        path=str(directory),
        architecture=str(next(iter(config.get("architectures") or []), config.get("model_type"))),
        computed_by="transformers" if model.family == "transformers" else "mmserve",
        context=text.max_position,
        layers=text.num_layers,
        kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        quantization=None if model.quantization is None else str(model.quantization),
        weights_bytes=Bytes(**{dtype: sum(part) for dtype, part in parts.items()}),
        kv_bytes_per_token=Bytes(**token_nbytes),
        kv_bytes_of_context=Bytes(**kv_nbytes),
        pictures=_pictures(model, parts, arena_nbytes),
        arena_bytes=arena_nbytes,
        total_bytes=Bytes(**{dtype: sum(parts[dtype]) + kv_nbytes[dtype] + arena_nbytes for dtype in _DTYPES}),
    )


def _pictures(model: ModelSpec, parts: dict[Dtype, PartBytes], arena_nbytes: int) -> PictureReport | None:
    # Imported here: numpy and Pillow would slow down a start.
    from mmserve.processors.registry import processor_for

    processor = processor_for(model)
    if processor is None:
        return None
    nbytes = {dtype: processor.max_rows * embed_row_nbytes(model, dtype) for dtype in _DTYPES}
    tower = Bytes(**{dtype: part.tower for dtype, part in parts.items()})
    return PictureReport(
        rows=processor.max_rows,
        embedding_bytes=Bytes(**nbytes),
        tower_weights_bytes=None if model.family == "transformers" else tower,
        fit_into_arena=arena_nbytes // extent_nbytes(nbytes["float32"]),
    )
