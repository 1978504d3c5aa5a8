"""Config, model and machine to Deployment: all decisions before processes start.

Reads the headers of the weight files; otherwise pure. Raises StartupError with one line that names a remedy.
"""

from __future__ import annotations

import os
import secrets
from importlib import metadata
from pathlib import PurePath
from typing import Literal

from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import check_tp
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.node_options import ranks_of
from mmserve.config.resolved.deployment import (
    DTYPE_BYTES,
    Deployment,
    Dtype,
    activation_dtype,
    embed_row_nbytes,
    kv_dtype,
)
from mmserve.config.resolved.gpu_capability import Capability, problem_with_bfloat16
from mmserve.ipc.arena import extent_nbytes, payload_nbytes
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup import combinations
from mmserve.supervisor.startup.machine import Machine
from mmserve.supervisor.startup.weight_memory import loaded_nbytes

GIB = 1 << 30
_TEXT_ARENA_NBYTES = 1 << 20
_DEFAULT_KV_NBYTES = GIB
_DEFAULT_KV_SHARE = 4
"""Without --kv-cache-gb the ranks together take at most this part (a quarter) of the free memory."""
_WITHOUT_BFLOAT16 = ("avx512", "avx2", "neon_bf16", "neon")
"""Kernels of these levels multiply bfloat16 no faster than float32."""
_SPARE_KV_TOKENS = 31
"""Beyond one context: the rank's rounding to whole blocks must not leave less than the context."""
_SMALLEST_IMAGE_NBYTES = 64 << 10


def make(
    config: Config,
    model: ModelSpec,
    machine: Machine,
    *,
    run_dir: str,
    url: str,
    max_image_rows: int = 0,
    draft: ModelSpec | None = None,
    shared_seed: int | None = None,
) -> Deployment:
    """Decide device, dtype, context, KV cache and arena; check that it all fits.

    ``max_image_rows``: of the model's image processor; 0 for a text model. ``draft``: the draft model.
    ``shared_seed``: of the keys of pictures, from a cluster key.
    """
    check_tp(model, config.tp)
    combinations.check_nodes(config, model)
    combinations.check_impl(config, model)
    combinations.check_speculation(config)
    device = _device(config, machine)
    combinations.check_attention(config, device)
    dtype = weight_dtype(config, model, device, fast_bfloat16=machine.fast_bfloat16, oldest_gpu=machine.oldest_gpu)
    max_model_len = _context(config, model, max_image_rows)
    if model.text.attends_whole_images:
        combinations.check_step(config, model, max_image_rows)
    combinations.check_kv_dtype(config, model, device, dtype)
    if draft is not None:
        combinations.check_draft(config, model, draft, dtype)
    activations = activation_dtype(model, device, dtype)
    kv_nbytes = DTYPE_BYTES[kv_dtype(config, dtype)]
    token_nbytes = kv_token_nbytes(model, config.tp, kv_nbytes)
    draft_token_nbytes = 0 if draft is None else kv_token_nbytes(draft, 1, kv_nbytes)
    deployment = Deployment(
        config=config,
        model=replace(model, text=for_context(model.text, max_model_len)),
        draft=None if draft is None else _for_context(draft, max_model_len),
        served_name=next(iter(config.served_model_name), _base_name(config.model)),
        device=device,
        dtype=dtype,
        cpu_threads=config.cpu_threads or machine.num_cores,
        max_model_len=max_model_len,
        kv_tokens=_kv_tokens(config, device, max_model_len, token_nbytes + draft_token_nbytes, machine),
        arena_nbytes=_arena_nbytes(config, model, max_image_rows * embed_row_nbytes(model, activations)),
        max_image_rows=max_image_rows,
        run_dir=run_dir,
        hash_seed=_hash_seed(config.mm_hash_seed, shared_seed),
        url=url,
        version=metadata.version("mmserve"),
    )
    deployment = replace(deployment, processor=machine.processor(deployment))
    if config.node_rank or config.join is not None:
        deployment = replace(deployment, arena_nbytes=_TEXT_ARENA_NBYTES)
    if config.join is None:  # an encoder has neither the language model nor a KV cache
        _check_memory(deployment, token_nbytes * len(deployment.ranks_here) + draft_token_nbytes, machine)
    return deployment


def _hash_seed(given: int | None, shared: int | None) -> int:
    if given is not None:
        return given
    return secrets.randbits(63) if shared is None else shared


def _for_context(draft: ModelSpec, max_model_len: int) -> ModelSpec:
    """The draft model for the contexts that both models can have."""
    length = min(draft.text.max_position, max_model_len)
    return replace(draft, text=replace(for_context(draft.text, length), max_position=length))


def _base_name(model: str) -> str:
    """``owner/name`` and ``./name/`` are both served as ``name``, ``.`` as the directory's own name."""
    return PurePath(os.path.abspath(model)).name  # noqa: PTH100 - no link is to be followed


def kv_token_nbytes(model: ModelSpec, tp: int, element_nbytes: int) -> int:
    """Bytes of one token in the KV cache of one rank: its key and value in every layer."""
    numbers = (len(group.layers) * max(1, group.num_kv_heads // tp) * group.head_dim for group in model.text.kv_groups)
    return 2 * element_nbytes * sum(numbers)


def _device(config: Config, machine: Machine) -> Literal["cpu", "cuda"]:
    if config.device == "cuda" and not machine.has_cuda:
        raise StartupError(
            f"--device cuda: {machine.cuda_problem or 'there is no GPU'}; use --device cpu, "
            "or make a GPU, its driver and a CUDA build of torch available"
        )
    if config.device == "auto":
        return "cuda" if machine.has_cuda else "cpu"
    return config.device


def weight_dtype(
    config: Config, model: ModelSpec, device: str, *, fast_bfloat16: bool, oldest_gpu: Capability | None = None
) -> Dtype:
    """Of the weights. ``fast_bfloat16``: the CPU multiplies it faster than float32. ``oldest_gpu``: None as for a new
    one. Raises StartupError."""
    too_old = problem_with_bfloat16(oldest_gpu) if device == "cuda" else ""
    if too_old and (config.dtype == "bfloat16" or config.quantization == "fp8"):
        asked = "--quantization fp8" if config.quantization == "fp8" else "--dtype bfloat16"
        raise StartupError(f"{asked}: {too_old}; leave it out, or choose GPUs with CUDA_VISIBLE_DEVICES")
    if config.quantization != "none" and model.quantization is not None:
        raise StartupError(f"--quantization: the checkpoint is quantised already ({model.quantization}); leave it out")
    if config.quantization == "fp8":
        if device != "cuda" or config.dtype not in ("auto", "bfloat16"):
            raise StartupError("--quantization fp8 is for a GPU and bfloat16: leave out --dtype; a CPU has int8, int4")
        return "bfloat16"
    if config.quantization != "none" and (device != "cpu" or config.dtype == "float16"):
        raise StartupError(
            f"--quantization {config.quantization} is for a CPU, and float32 or bfloat16: leave out --device and "
            "--dtype, or choose fp8 on a GPU"
        )
    on_gpu = device == "cuda" and model.quantization is not None and model.quantization.layout != "gguf"
    if model.quantization is not None and not on_gpu:
        if device != "cpu" or config.dtype not in ("auto", "float32"):
            raise StartupError("a quantised checkpoint is computed with --device cpu and without --dtype")
        return "float32"
    if config.dtype == "auto":
        is_fast = fast_bfloat16 and config.kernel_level not in _WITHOUT_BFLOAT16
        if too_old:
            return "float16"
        return "bfloat16" if device == "cuda" or is_fast else "float32"
    return config.dtype


def _context(config: Config, model: ModelSpec, max_image_rows: int) -> int:
    longest = model.text.max_position
    length = config.max_model_len or longest
    if length > longest:
        raise StartupError(f"--max-model-len {length} is more than the model's {longest} positions: lower it")
    if max_image_rows >= length:
        raise StartupError(
            f"--max-model-len {length} has no room for one image, which may take {max_image_rows} tokens: raise it, "
            "or lower the size of images with --mm-processor-kwargs"
        )
    return length


def most_image_rows(config: Config, model: ModelSpec, machine: Machine) -> int:
    """Of the largest image that ``make`` accepts for the context and the arena; 0 if none fits."""
    assert model.vision is not None
    device = _device(config, machine)
    dtype = weight_dtype(config, model, device, fast_bfloat16=machine.fast_bfloat16, oldest_gpu=machine.oldest_gpu)
    row_nbytes = embed_row_nbytes(model, activation_dtype(model, device, dtype))
    of_context = (config.max_model_len or model.text.max_position) - 1
    arena_nbytes = arena_size(config, model) - extent_nbytes(_SMALLEST_IMAGE_NBYTES)
    return max(0, min(of_context, payload_nbytes(arena_nbytes) // row_nbytes))


def _kv_tokens(config: Config, device: str, max_model_len: int, token_nbytes: int, machine: Machine) -> int | None:
    one_context = max_model_len + _SPARE_KV_TOKENS
    if config.kv_cache_gb is not None:
        num_tokens = int(config.kv_cache_gb * GIB) // token_nbytes
        if num_tokens < one_context:
            raise StartupError(
                f"--kv-cache-gb {config.kv_cache_gb:g} holds {num_tokens} tokens, less than one context "
                f"of {max_model_len}: raise it to {one_context * token_nbytes / GIB:.2g} or more, "
                "or lower --max-model-len"
            )
        return num_tokens
    if device == "cuda":
        return None
    num_ranks = len(ranks_of(config, config.node_rank))
    affordable = min(_DEFAULT_KV_NBYTES, machine.memory_bytes // _DEFAULT_KV_SHARE // num_ranks) // token_nbytes
    return max(one_context, min(affordable, one_context * config.max_num_seqs))


def arena_size(config: Config, model: ModelSpec) -> int:
    """Bytes of the shared memory for images and their embeddings."""
    return _TEXT_ARENA_NBYTES if model.vision is None else int(config.mm_cache_gb * GIB) // 4096 * 4096


def _arena_nbytes(config: Config, model: ModelSpec, image_nbytes: int) -> int:
    """``image_nbytes``: of the rows of the largest image."""
    nbytes = arena_size(config, model)
    needed = extent_nbytes(image_nbytes) + extent_nbytes(_SMALLEST_IMAGE_NBYTES)
    if model.vision is not None and 0 < nbytes < needed:
        raise StartupError(
            f"--mm-cache-gb {config.mm_cache_gb:g} cannot hold even one image's embedding: "
            f"raise it to {needed / GIB:.2g} or more"
        )
    return nbytes


def _check_memory(deployment: Deployment, token_nbytes: int, machine: Machine) -> None:
    """``token_nbytes``: of a token in the KV caches of all ranks together."""
    weights = kv = 0
    if deployment.device == "cpu":
        weights = loaded_nbytes(deployment.model, deployment.dtype, deployment.config.quantization)
        weights //= deployment.config.nnodes
        if (draft := deployment.draft) is not None:
            quantization = deployment.config.quantization if draft.quantization is None else "none"
            weights += loaded_nbytes(draft, deployment.dtype, quantization)
        kv = (deployment.kv_tokens or 0) * token_nbytes
    # Huge pages are reserved beforehand and are not part of the free memory.
    arena = 0 if deployment.config.arena_huge_pages else deployment.arena_nbytes
    needed = weights + kv + arena
    if needed > machine.memory_bytes:
        raise StartupError(
            f"too little memory: weights {_gib(weights)} + KV cache {_gib(kv)} + arena "
            f"{_gib(arena)} are more than the {_gib(machine.memory_bytes)} free on "
            f"{machine.limited_by}; lower --kv-cache-gb, --max-model-len or --mm-cache-gb"
        )


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.1f} GiB"
