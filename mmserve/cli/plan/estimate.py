"""How much of a model fits into which memory, and how fast it can decode at most. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from mmserve.checkpoint.spec import ModelSpec
from mmserve.cli.plan.hardware import Hardware
from mmserve.cli.plan.model_facts import ModelFacts
from mmserve.cli.plan.on_card import on_card_nbytes
from mmserve.cli.plan.under_way import lowered, under_way_nbytes
from mmserve.config.config import Config
from mmserve.config.options import OPTIONS
from mmserve.config.resolved import gpu_memory
from mmserve.config.resolved.deployment import DTYPE_BYTES, Dtype, KvDtype, activation_dtype, kv_dtype
from mmserve.config.resolved.gpu_memory import Card, RankShare
from mmserve.ipc.arena import extent_nbytes

_MIB = 1 << 20
GIB = 1 << 30
_CPU_PROCESSES_NBYTES = 600 * _MIB
"""PSS of all processes without weights, KV cache and arena: of the packaged model at rest, rounded up."""
_CPU_PROCESS_NBYTES = (65 * _MIB, 215 * _MIB, 200 * _MIB)
"""PSS of each further HTTP worker, visual server and rank, with the packaged model at rest."""
_SHOWN = (
    *("tp", "dtype", "quantization", "kernel_level", "speculative_model", "kv_cache_dtype", "max_model_len"),
    "gpu_memory_utilization",
    *("max_num_seqs", "max_num_batched_tokens", "mm_cache_gb", "http_workers", "visual_workers", "pixel_budget_mb"),
    *("body_budget_mb", "fetch_budget_mb", "max_body_mb"),
)
_SHARE = 0.9
"""Of the memory, for the server without bodies and pictures under way."""
_SHARE_IN_ALL = 0.95
"""With them, where they do not fit into the rest."""
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
    kv_dtype: KvDtype
    context: int
    text_weights_bytes: int
    tower_weights_bytes: int
    draft_weights_bytes: int
    """Of the draft model (--speculative-model)."""
    other_bytes: int
    """Processes without weights and caches; activations of a step."""
    arena_bytes: int
    """On GPUs it is host memory, and does not count."""
    traffic_bytes: int
    """Host memory that bodies and pictures under way take at most beside all this: the sum of their budgets, which are
    lower than asked for if they do not fit otherwise."""
    kv_bytes_per_token: int
    """With that of the draft model."""
    kv_tokens: int
    """That the memory has room for; 0 if not even one context fits."""
    least_memory_bytes: int
    """That has room for one context, with the lowest budgets."""
    picture_rows: int
    """Tokens of the largest picture; 0 for a text model."""
    picture_kv_bytes: int
    picture_arena_bytes: int
    fits: tuple[Fit, ...]
    speeds: tuple[Speed, ...]
    """Without a draft model."""
    flags: tuple[str, ...]
    """Of ``mmserve serve``, beside --model."""


def estimate(
    config: Config,
    facts: ModelFacts,
    dtype: Dtype,
    hardware: Hardware,
    picture_rows: int,
    draft: ModelFacts | None = None,
) -> Estimate:
    """``dtype``: of the weights. ``picture_rows``: of the largest picture. ``draft``: the draft model."""
    device: Literal["cpu", "cuda"] = "cuda" if hardware.is_gpu else "cpu"
    model, cache_dtype, utilization = facts.model, kv_dtype(config, dtype), config.gpu_memory_utilization
    rank_token_nbytes = facts.kv_token_nbytes(config.tp, cache_dtype)
    draft_nbytes, draft_token_nbytes = _of_draft(config, draft, dtype, cache_dtype)
    text_nbytes, tower_nbytes = facts.weights(dtype, config.quantization)
    tower_nbytes *= config.visual_workers
    arena_nbytes = facts.arena_nbytes(config)
    if hardware.is_gpu:
        other_nbytes = on_card_nbytes(config, model, dtype)
        text_nbytes //= config.tp
        token_nbytes = rank_token_nbytes + draft_token_nbytes
    else:
        other_nbytes = _step_nbytes(config, model) + _processes_nbytes(config, model)
        token_nbytes = rank_token_nbytes * config.tp + draft_token_nbytes
    fixed_nbytes = text_nbytes + tower_nbytes + draft_nbytes + other_nbytes
    if not (hardware.is_gpu or config.arena_huge_pages):  # huge pages are no part of the free memory
        fixed_nbytes += arena_nbytes
    context = min(config.max_model_len or model.text.max_position, model.text.max_position)
    left = int(hardware.memory_nbytes * _SHARE)
    if hardware.is_gpu:
        left = gpu_memory.kv_nbytes(Card(hardware.memory_nbytes, hardware.memory_nbytes), RankShare(0, 0), utilization)
    kv_tokens = max(0, left - fixed_nbytes) // token_nbytes
    if config.kv_cache_gb is not None:  # of each rank, the draft model's cache included
        kv_tokens = min(kv_tokens, int(config.kv_cache_gb * GIB) // (rank_token_nbytes + draft_token_nbytes))
    context_nbytes = context * token_nbytes
    least_nbytes: float = gpu_memory.least_card_nbytes(fixed_nbytes + context_nbytes, utilization)
    if not hardware.is_gpu:
        least_nbytes = (fixed_nbytes + context_nbytes + _least_under_way(config, model, arena_nbytes)) / _SHARE_IN_ALL
        usable_nbytes = int(hardware.memory_nbytes * _SHARE_IN_ALL) - fixed_nbytes
        rooms = _Rooms(hardware.memory_nbytes - fixed_nbytes, usable_nbytes)
        config, kv_nbytes = _shared(config, model, arena_nbytes, rooms, kv_tokens * token_nbytes, context_nbytes)
        kv_tokens = kv_nbytes // token_nbytes
    kv_tokens = kv_tokens if kv_tokens >= context else 0
    picture_nbytes = facts.picture_nbytes(picture_rows, activation_dtype(model, device, dtype))
    rank_kv_gb = kv_tokens * (rank_token_nbytes + draft_token_nbytes) / GIB
    return Estimate(
        hardware=hardware.name,
        tp=config.tp,
        memory_bytes=hardware.memory_nbytes,
        dtype=dtype,
        kv_dtype=cache_dtype,
        context=context,
        text_weights_bytes=text_nbytes,
        tower_weights_bytes=tower_nbytes,
        draft_weights_bytes=draft_nbytes,
        other_bytes=other_nbytes,
        arena_bytes=arena_nbytes,
        traffic_bytes=under_way_nbytes(config, model, arena_nbytes),
        kv_bytes_per_token=token_nbytes,
        kv_tokens=kv_tokens,
        least_memory_bytes=int(least_nbytes),
        picture_rows=picture_rows,
        picture_kv_bytes=picture_rows * token_nbytes,
        picture_arena_bytes=extent_nbytes(picture_nbytes) if picture_rows else 0,
        fits=tuple(_fits(kv_tokens, context, picture_rows)),
        speeds=tuple(_speeds(model, text_nbytes, token_nbytes - draft_token_nbytes, hardware, dtype, context)),
        flags=tuple(_flags(config, rank_kv_gb, hardware)),
    )


def _of_draft(config: Config, draft: ModelFacts | None, dtype: Dtype, cache_dtype: KvDtype) -> tuple[int, int]:
    """Bytes of its weights, and of a token in its KV cache, for the same tokens. The first rank has both alone."""
    if draft is None:
        return 0, 0
    weights = draft.weights(dtype, "none" if draft.model.quantization else config.quantization)
    return sum(weights), draft.kv_token_nbytes(1, cache_dtype)


def _step_nbytes(config: Config, model: ModelSpec) -> int:
    """Activations of the largest step in float32: hidden states, both halves of an MLP, logits."""
    text = model.text
    rows = config.max_num_batched_tokens * (6 * text.hidden_size + 2 * max(text.intermediate_sizes))
    return 4 * (rows + config.max_num_seqs * text.vocab_size)


def _processes_nbytes(config: Config, model: ModelSpec) -> int:
    others = config.http_workers - 1, (config.visual_workers - 1 if model.vision else 0), config.tp - 1
    further = sum(count * nbytes for count, nbytes in zip(others, _CPU_PROCESS_NBYTES, strict=True))
    return _CPU_PROCESSES_NBYTES + further


class _Rooms(NamedTuple):
    """Bytes for KV cache, bodies and pictures: all that there is, and what of it is given out."""

    whole_nbytes: int
    usable_nbytes: int


def _least_under_way(config: Config, model: ModelSpec, arena_nbytes: int) -> int:
    return under_way_nbytes(lowered(config, model, arena_nbytes, 0), model, arena_nbytes)


def _shared(
    config: Config, model: ModelSpec, arena_nbytes: int, rooms: _Rooms, kv_nbytes: int, context_nbytes: int
) -> tuple[Config, int]:
    """Budgets, and bytes of the KV cache, that are in the room together: those of ``config`` if they are, else lower
    ones. A KV cache that was asked for is made smaller only if the lowest budgets do not fit beside it."""
    if kv_nbytes + under_way_nbytes(config, model, arena_nbytes) <= rooms.whole_nbytes:
        return config, kv_nbytes
    kept = kv_nbytes if config.kv_cache_gb is not None else max(context_nbytes, rooms.usable_nbytes // 2)
    config = lowered(config, model, arena_nbytes, rooms.usable_nbytes - kept)
    return config, min(kv_nbytes, max(0, rooms.usable_nbytes - under_way_nbytes(config, model, arena_nbytes)))


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


def _flags(config: Config, rank_kv_gb: float, hardware: Hardware) -> list[str]:
    """Those that were planned with and are not the default, and the KV cache that fits."""
    plain = Config()
    flags = [
        f"{OPTIONS[name].flag} {f'{value:g}' if isinstance(value, float) else value}"
        for name in _SHOWN
        if (value := getattr(config, name)) != getattr(plain, name) and not isinstance(value, bool)
    ]
    flags += ["--arena-huge-pages"] if config.arena_huge_pages else []
    if not hardware.is_gpu and rank_kv_gb:
        flags.append(f"--kv-cache-gb {int(rank_kv_gb * 100) / 100:g}")
    return flags
