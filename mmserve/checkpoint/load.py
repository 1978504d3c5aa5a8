"""Reads a checkpoint directory's JSON files into a ModelSpec, and checks that the model can be served.

Weights are not read, except to compare a tied output head with the embedding (``tied_head``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mmserve.checkpoint.config.layer_states import check, with_states
from mmserve.checkpoint.files import read_json, weight_files
from mmserve.checkpoint.gguf.adapt import as_stored
from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.checkpoint.registry import read_model
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.tied_head import has_own_head
from mmserve.runtime.errors import StartupError


def read_config(directory: Path, *, weights: bool = True) -> dict[str, Any]:
    """config.json. Raises StartupError if it is unreadable, or if ``weights`` are wanted and missing."""
    config = read_json(directory / "config.json")
    if config is None:
        raise StartupError(f"{directory} holds no config.json, so it is not a checkpoint directory")
    if weights:
        weight_files(directory)
    return config


def load(directory: Path, *, weights: bool = True) -> ModelSpec:
    """Read a checkpoint directory. Raises StartupError if it is unreadable, unsupported or lacks weights.

    Without ``weights`` there need be none; a tied head is then what config.json says.
    """
    directory = directory.resolve()
    config = read_config(directory, weights=weights)
    model = read_model(directory, config)
    text = with_states(model.text, config.get("text_config") or config.get("llm_config") or config)
    check(text)
    model = replace(model, text=text, quantization=read_scheme(config))
    if "gguf" in config:
        model = as_stored(model, config["gguf"])
    if not (weights and model.text.tie_embeddings and has_own_head(weight_files(directory))):
        return model
    return replace(model, text=replace(model.text, tie_embeddings=False))


def check_tp(spec: ModelSpec, tp: int) -> None:
    """Raise StartupError, listing valid sizes, unless ``tp`` ranks can share the model's heads evenly.

    Where ranks are more than KV heads, each KV head is on several ranks.
    """
    if _divides(spec, tp):
        return
    text = spec.text
    valid = [str(size) for size in range(1, text.num_heads + 1) if _divides(spec, size)]
    inner = " and ".join(map(str, text.intermediate_sizes))
    raise StartupError(
        f"--tp {tp} does not divide the model's {text.num_heads} query heads, {text.num_kv_heads} KV heads and "
        f"intermediate size {inner}; --tp can be {', '.join(valid)}"
    )


def _divides(spec: ModelSpec, tp: int) -> bool:
    text = spec.text
    kv_heads_fit = text.num_kv_heads % tp == 0 or tp % text.num_kv_heads == 0
    return text.num_heads % tp == 0 and kv_heads_fit and all(size % tp == 0 for size in text.intermediate_sizes)
