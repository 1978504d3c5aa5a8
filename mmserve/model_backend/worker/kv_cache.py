"""Allocates the paged KV cache of a rank: one tensor, in as many blocks as fit. The router assigns the blocks."""

from __future__ import annotations

from typing import Any

import torch

from mmserve.config.deployment import Deployment
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import KV_DTYPES, is_out_of_memory
from mmserve.model_backend.platforms.interface import Platform
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import StartupError

_FREE_SHARE = 0.85
"""Part of the GPU memory that is free after loading. Activations and a vision tower on the same GPU use the rest."""


def allocate(
    deployment: Deployment,
    tp: TpGroup,
    platform: Platform,
    attention: AttentionBackend[Any],
    block_tokens: int,
    draft_block_nbytes: int = 0,
) -> torch.Tensor:
    """Zeros [layers, *kv_shape of the attention backend], with the same number of blocks on all ranks.

    ``draft_block_nbytes``: of a block of the draft model's cache, which this rank allocates besides.

    Raises StartupError if one sequence of max_model_len does not fit, or if the memory is not there.
    """
    (group,) = deployment.model.text.kv_groups
    num_layers, dtype = len(group.layers), KV_DTYPES[deployment.kv_dtype]
    if deployment.kv_tokens is not None:
        num_blocks = deployment.kv_tokens // block_tokens
        if deployment.config.nnodes > 1:  # machines with different memory
            num_blocks = _agreed(num_blocks, tp, platform)
    else:
        nbytes = block_nbytes(num_layers, dtype, attention, block_tokens) + draft_block_nbytes
        num_blocks = _blocks_that_fit(deployment, tp, platform, block_tokens, nbytes)
    per_sequence = -(-deployment.max_model_len // block_tokens)
    if num_blocks < per_sequence:
        raise StartupError(
            f"the KV cache holds {num_blocks * block_tokens} tokens, less than one sequence of "
            f"{deployment.max_model_len}: raise --kv-cache-gb or lower --max-model-len"
        )
    shape = (num_layers, *attention.kv_shape(num_blocks, block_tokens))
    nbytes = torch.Size(shape).numel() * dtype.itemsize
    try:
        cache = platform.allocate_kv_cache(shape, dtype)
        return cache.zero_() if deployment.config.prefault else cache
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise StartupError(
            f"the KV cache of {nbytes / MIB:.0f} MiB for {num_blocks * block_tokens} tokens does not fit the memory of "
            f"{platform.device_name}: lower --kv-cache-gb or --max-model-len, or end what else uses that memory"
        ) from error


def block_nbytes(num_layers: int, dtype: torch.dtype, attention: AttentionBackend[Any], block_tokens: int) -> int:
    """Of one block in all layers."""
    return num_layers * torch.Size(attention.kv_shape(1, block_tokens)).numel() * dtype.itemsize


def _blocks_that_fit(
    deployment: Deployment, tp: TpGroup, platform: Platform, block_tokens: int, block_nbytes: int
) -> int:
    """Blocks that fit in the free memory of every rank's GPU, at most twice what all slots can use."""
    useful = 2 * deployment.config.max_num_seqs * -(-deployment.max_model_len // block_tokens)
    sharers = -(-tp.size // torch.cuda.device_count())
    platform.release_cached_memory()
    # Two barriers: every rank has loaded before one measures, and every rank has measured before one allocates.
    tp.sum(torch.zeros(1, device=platform.device))
    fits = int(platform.free_memory_nbytes() * _FREE_SHARE) // sharers // block_nbytes
    return _agreed(min(fits, useful), tp, platform)


def _agreed(num_blocks: int, tp: TpGroup, platform: Platform) -> int:
    """The smallest of all ranks' numbers."""
    return int(tp.min(torch.tensor([num_blocks], device=platform.device)).item())
