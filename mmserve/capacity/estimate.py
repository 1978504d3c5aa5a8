"""How much of a model fits into which memory, and how fast it can decode at most. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from mmserve.capacity.hardware import Hardware
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.deployment import DTYPE_BYTES, Dtype, activation_dtype, embed_row_nbytes, kv_dtype
from mmserve.ipc.arena import extent_nbytes
from mmserve.supervisor.startup import plan
from mmserve.supervisor.startup.weight_memory import PartBytes, quantized_nbytes

_MIB = 1 << 20
GIB = 1 << 30
_CPU_PROCESSES_NBYTES = 600 * _MIB
"""PSS of all processes without weights, KV cache and arena: of the packaged model at rest, rounded up."""
_GPU_CONTEXT_NBYTES = GIB
"""Of CUDA and torch in one process."""
_SHARE = 0.9
"""Of the memory, for the server."""
_BLOCK_TOKENS = 32
_TOKENS = (4096, 32_768)
_PICTURES = (1, 8)
_PICTURE_TEXT_TOKENS = 512
"""Beside the pictures of a request."""
_BATCHES = ((1, 1024), (16, 1024), (1, 8192))
"""Sequences, and tokens of each."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one kind that are in the KV cache together. ``tokens``: of each, its pictures included."""

    tokens: int
    pictures: int
    requests: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The limit of reading weights and KV cache once a step."""

    sequences: int
    context: int
    tokens_per_s: float


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes, of all processes together on a CPU, of each card on GPUs."""

    hardware: str
    tp: int
    memory_bytes: int
    dtype: Dtype
    kv_dtype: Dtype
    context: int
    text_weights_bytes: int
    tower_weights_bytes: int
    other_bytes: int
    """Processes without weights and caches; activations of a step."""
    arena_bytes: int
    """On GPUs it is host memory, and does not count."""
    kv_bytes_per_token: int
    kv_tokens: int
    """That the memory has room for; 0 if not even one context fits."""
    picture_rows: int
    """Tokens of the largest picture; 0 for a text model."""
    picture_kv_bytes: int
    picture_arena_bytes: int
    fits: tuple[Fit, ...]
    speeds: tuple[Speed, ...]
    flags: tuple[str, ...]
    """Of ``mmserve serve``, beside --model."""


def estimate(
    config: Config, model: ModelSpec, parts: PartBytes, dtype: Dtype, hardware: Hardware, picture_rows: int
) -> Estimate:
    """``parts``: bytes of the weights in ``dtype``. ``picture_rows``: of the largest picture."""
    device: Literal["cpu", "cuda"] = "cuda" if hardware.is_gpu else "cpu"
    cache_dtype = kv_dtype(config, dtype)
    token_nbytes = plan.kv_token_nbytes(model, config.tp, DTYPE_BYTES[cache_dtype])
    text_nbytes = quantized_nbytes(model, sum(parts), dtype, config.quantization) - parts.tower
    tower_nbytes, arena_nbytes = parts.tower * config.visual_workers, plan.arena_size(config, model)
    other_nbytes = _step_nbytes(config, model) + _CPU_PROCESSES_NBYTES
    left = int(hardware.memory_nbytes * _SHARE)
    if hardware.is_gpu:
        text_nbytes //= config.tp
        other_nbytes = _step_nbytes(config, model) + _GPU_CONTEXT_NBYTES * (2 if model.vision else 1)
    else:
        token_nbytes *= config.tp
        left -= arena_nbytes
    context = min(config.max_model_len or model.text.max_position, model.text.max_position)
    kv_tokens = max(0, left - text_nbytes - tower_nbytes - other_nbytes) // token_nbytes
    if config.kv_cache_gb is not None:
        kv_tokens = min(
            kv_tokens, int(config.kv_cache_gb * GIB) * (1 if hardware.is_gpu else config.tp) // token_nbytes
        )
    kv_tokens = kv_tokens if kv_tokens >= context else 0
    row_nbytes = embed_row_nbytes(model, activation_dtype(model, device, dtype))
    return Estimate(
        hardware=hardware.name,
        tp=config.tp,
        memory_bytes=hardware.memory_nbytes,
        dtype=dtype,
        kv_dtype=cache_dtype,
        context=context,
        text_weights_bytes=text_nbytes,
        tower_weights_bytes=tower_nbytes,
        other_bytes=other_nbytes,
        arena_bytes=arena_nbytes,
        kv_bytes_per_token=token_nbytes,
        kv_tokens=kv_tokens,
        picture_rows=picture_rows,
        picture_kv_bytes=picture_rows * token_nbytes,
        picture_arena_bytes=extent_nbytes(picture_rows * row_nbytes) if picture_rows else 0,
        fits=tuple(_fits(kv_tokens, context, picture_rows)),
        speeds=tuple(_speeds(model, text_nbytes, token_nbytes, hardware, dtype, context)),
        flags=tuple(_flags(config, kv_tokens, token_nbytes, hardware)),
    )


def _step_nbytes(config: Config, model: ModelSpec) -> int:
    """Activations of the largest step in float32: hidden states, both halves of an MLP, logits."""
    text = model.text
    rows = config.max_num_batched_tokens * (6 * text.hidden_size + 2 * max(text.intermediate_sizes))
    return 4 * (rows + config.max_num_seqs * text.vocab_size)


def _fits(kv_tokens: int, context: int, picture_rows: int) -> list[Fit]:
    kinds = [(tokens, 0) for tokens in _TOKENS if tokens <= context] or [(context, 0)]
    if picture_rows:
        kinds += [(_PICTURE_TEXT_TOKENS + count * picture_rows, count) for count in _PICTURES]
    return [
        Fit(tokens=tokens, pictures=pictures, requests=kv_tokens // (-(-tokens // _BLOCK_TOKENS) * _BLOCK_TOKENS))
        for tokens, pictures in kinds
        if tokens <= context
    ]


def _speeds(
    model: ModelSpec, text_nbytes: int, token_nbytes: int, hardware: Hardware, dtype: Dtype, context: int
) -> list[Speed]:
    text = model.text
    # Of the embedding a step reads a row a token; where it is the head too, all of it is read as that.
    table = 0 if text.tie_embeddings else text.vocab_size * text.hidden_size * DTYPE_BYTES[dtype]
    speeds = []
    for sequences, tokens in _BATCHES:
        if tokens > context:
            continue
        weights = (text_nbytes - table) * _read_share(model, sequences)
        step_s = (weights + sequences * tokens * token_nbytes) / hardware.read_rate
        speeds.append(Speed(sequences=sequences, context=tokens, tokens_per_s=round(sequences / step_s, 1)))
    return speeds


def _read_share(model: ModelSpec, sequences: int) -> float:
    """Part of the weights that a step reads: of a mixture of experts at most top_k experts a token."""
    text = model.text
    if text.moe is None:
        return 1.0
    with_experts = sum(layer.experts for layer in text.layers)
    of_experts = 3 * text.hidden_size * with_experts * text.moe.num_experts * text.moe.intermediate_size
    heads = (2 * text.num_heads + 2 * text.num_kv_heads) * text.head_dim
    whole = text.num_mlp_weights + text.num_layers * text.hidden_size * heads + text.vocab_size * text.hidden_size
    unread = 1 - min(1.0, sequences * text.moe.top_k / text.moe.num_experts)
    return 1 - unread * of_experts / whole


def _flags(config: Config, kv_tokens: int, token_nbytes: int, hardware: Hardware) -> list[str]:
    flags = [f"--tp {config.tp}"] if config.tp > 1 else []
    if config.quantization != "none":
        flags.append(f"--quantization {config.quantization}")
    if config.dtype != "auto":
        flags.append(f"--dtype {config.dtype}")
    if config.kv_cache_dtype != "auto":
        flags.append(f"--kv-cache-dtype {config.kv_cache_dtype}")
    if config.max_model_len is not None:
        flags.append(f"--max-model-len {config.max_model_len}")
    if not hardware.is_gpu and kv_tokens:
        flags.append(f"--kv-cache-gb {int(kv_tokens * token_nbytes / config.tp / GIB * 100) / 100:g}")
    return flags
