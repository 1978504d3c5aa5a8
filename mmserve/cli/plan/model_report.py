"""What a checkpoint is and what memory it will need, without starting a server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from mmserve.checkpoint.load import read_config
from mmserve.cli.plan import model_facts
from mmserve.cli.plan.model_facts import DTYPES, ModelFacts
from mmserve.config.config import Config
from mmserve.config.fields import ModelImpl
from mmserve.ipc.arena import extent_nbytes
from mmserve.supervisor.startup.find_model import read_model


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
    # Imported here, as in _pictures.
    from mmserve.httpserver.prompt.model_tokenizer import read_tokenizer

    facts = model_facts.of_files(read_model(directory, impl))
    model, config = facts.model, read_config(directory)
    read_tokenizer(model)
    text, arena_nbytes = model.text, facts.arena_nbytes(Config())
    weights = {dtype: facts.weights(dtype) for dtype in DTYPES}
    token_nbytes = {dtype: facts.kv_token_nbytes(1, dtype) for dtype in DTYPES}
    kv_nbytes = {dtype: nbytes * text.max_position for dtype, nbytes in token_nbytes.items()}
    return ModelReport(
        path=str(directory),
        architecture=str(next(iter(config.get("architectures") or []), config.get("model_type"))),
        computed_by="transformers" if model.family == "transformers" else "mmserve",
        context=text.max_position,
        layers=text.num_layers,
        kv_heads=text.num_kv_heads,
        head_dim=text.head_dim,
        quantization=None if model.quantization is None else str(model.quantization),
        weights_bytes=Bytes(**{dtype: sum(part) for dtype, part in weights.items()}),
        kv_bytes_per_token=Bytes(**token_nbytes),
        kv_bytes_of_context=Bytes(**kv_nbytes),
        pictures=_pictures(facts, arena_nbytes),
        arena_bytes=arena_nbytes,
        total_bytes=Bytes(**{dtype: sum(weights[dtype]) + kv_nbytes[dtype] + arena_nbytes for dtype in DTYPES}),
    )


def _pictures(facts: ModelFacts, arena_nbytes: int) -> PictureReport | None:
    # Imported here: numpy and Pillow would slow down a start.
    from mmserve.processors.registry import processor_for

    processor = processor_for(facts.model)
    if processor is None:
        return None
    nbytes = {dtype: facts.picture_nbytes(processor.max_rows, dtype) for dtype in DTYPES}
    tower = Bytes(**{dtype: facts.weights(dtype).tower for dtype in DTYPES})
    return PictureReport(
        rows=processor.max_rows,
        embedding_bytes=Bytes(**nbytes),
        tower_weights_bytes=None if facts.model.family == "transformers" else tower,
        fit_into_arena=arena_nbytes // extent_nbytes(nbytes["float32"]),
    )
