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
    KvDtype,
    activation_dtype,
    embed_row_nbytes,
    kv_dtype,
)
from mmserve.config.resolved.gpu_capability import Capability, problem_with_bfloat16
from mmserve.ipc.arena import extent_nbytes, payload_nbytes
from mmserve.runtime.errors import StartupError
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
_MAX_ROWS_NBYTES = 192 << 20
"""Less than a message between nodes may have (``ipc/curve.py``)."""
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
    _check_nodes(config, model)
    _check_impl(config, model)
    _check_speculation(config)
    device = _device(config, machine)
    _check_attention(config, device)
    dtype = weight_dtype(config, model, device, fast_bfloat16=machine.fast_bfloat16, oldest_gpu=machine.oldest_gpu)
    max_model_len = _context(config, model, max_image_rows)
    if model.text.attends_whole_images:
        _check_step(config, model, max_image_rows)
    _check_kv_dtype(config, model, device, dtype)
    if draft is not None:
        _check_draft(config, model, draft, dtype)
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
    if config.node_rank or config.join is not None:
        deployment = replace(deployment, arena_nbytes=_TEXT_ARENA_NBYTES)
    if config.join is None:  # an encoder has neither the language model nor a KV cache
        _check_memory(deployment, token_nbytes * len(deployment.ranks_here) + draft_token_nbytes, machine)
    return deployment


def _hash_seed(given: int | None, shared: int | None) -> int:
    if given is not None:
        return given
    return secrets.randbits(63) if shared is None else shared


def _check_nodes(config: Config, model: ModelSpec) -> None:
    """The embedding rows of a step must fit into a message to other nodes."""
    row_nbytes = embed_row_nbytes(model, "float32")
    if config.nnodes > 1 and config.max_num_batched_tokens * row_nbytes > _MAX_ROWS_NBYTES:
        raise StartupError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is more than one message to another node can "
            f"hold the embeddings of: lower it to {_MAX_ROWS_NBYTES // row_nbytes} or less"
        )


def _check_speculation(config: Config) -> None:
    option = "--speculative-model" if config.speculative_model is not None else f"--speculative {config.speculative}"
    if config.overlap_scheduling and option != "--speculative none":
        raise StartupError(
            f"{option} does not go with --overlap-scheduling: what follows a token is looked up before the next step "
            "is planned; leave one of them out"
        )


def _check_draft(config: Config, model: ModelSpec, draft: ModelSpec, dtype: Dtype) -> None:
    if model.family == "transformers":
        raise StartupError(
            "--speculative-model does not go with a model that transformers' modules compute: leave it out"
        )
    if draft.quantization is not None and dtype != "float32":
        raise StartupError(
            f"--speculative-model {config.speculative_model} is quantised ({draft.quantization}), which is computed in "
            f"float32, and the served model in {dtype}: add --dtype float32, or choose another"
        )


def _for_context(draft: ModelSpec, max_model_len: int) -> ModelSpec:
    """The draft model for the contexts that both models can have."""
    length = min(draft.text.max_position, max_model_len)
    return replace(draft, text=replace(for_context(draft.text, length), max_position=length))


def _check_impl(config: Config, model: ModelSpec) -> None:
    if model.family != "transformers":
        return
    for option, is_set in ((f"--tp {config.tp}", config.tp > 1), ("--quantization", config.quantization != "none")):
        if is_set:
            raise StartupError(f"{option} does not go with a model that transformers' modules compute: leave it out")


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


def _check_attention(config: Config, device: Literal["cpu", "cuda"]) -> None:
    if device == "cpu" and config.attention_backend != "auto":
        raise StartupError(
            f"--attention-backend {config.attention_backend} is for a GPU, and a CPU computes attention in one way: "
            "leave it out, or add --device cuda"
        )


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
    on_gpu = device == "cuda" and model.quantization is not None and model.quantization.layout != "gguf"
    if config.quantization != "none" or (model.quantization is not None and not on_gpu):
        if device != "cpu" or config.dtype not in ("auto", "float32"):
            if model.quantization is not None:
                raise StartupError("a quantised checkpoint is computed with --device cpu and without --dtype")
            raise StartupError(
                f"--quantization {config.quantization} is for a CPU and float32: leave out --dtype and --device, "
                "or choose fp8 on a GPU"
            )
        return "float32"
    if config.dtype == "auto":
        is_fast = fast_bfloat16 and config.kernel_level not in _WITHOUT_BFLOAT16
        if too_old:
            return "float16"
        return "bfloat16" if device == "cuda" or is_fast else "float32"
    return config.dtype


def _check_kv_dtype(config: Config, model: ModelSpec, device: Literal["cpu", "cuda"], dtype: Dtype) -> None:
    """What mmserve's own code on a CPU computes in float32 it also reads from bfloat16, and on a GPU all from fp8."""
    accepted: list[KvDtype] = [activation_dtype(model, device, dtype)]
    chosen = kv_dtype(config, dtype)
    if model.family != "transformers" and device == "cuda":
        accepted.append("fp8")
    elif model.family != "transformers" and accepted == ["float32"]:
        accepted.append("bfloat16")
    if chosen not in accepted:
        raise StartupError(
            f"--kv-cache-dtype {chosen} does not go with this model on {device} in {dtype}: leave it out, or choose "
            f"{' or '.join(accepted)}"
        )


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


def _check_step(config: Config, model: ModelSpec, max_image_rows: int) -> None:
    """A step must have room for the longest run of an image's rows and a token of every other running sequence."""
    run_rows = model.vision.run_rows if model.vision is not None else None
    needed = min(max_image_rows, run_rows or max_image_rows) + config.max_num_seqs - 1
    if config.max_num_batched_tokens < needed:
        raise StartupError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} has no room for one image, or one tile of it, "
            f"which this model computes in one step: raise it to {needed}, or lower --max-num-seqs"
        )


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
