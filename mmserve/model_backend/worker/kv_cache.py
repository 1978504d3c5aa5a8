"""Allocates the paged KV cache of a rank: one tensor, in as many blocks as fit. The router assigns the blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from mmserve.config.resolved import gpu_memory
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import RankShare
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.device import KV_DTYPES, is_out_of_memory
from mmserve.model_backend.platforms.interface import Platform
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import StartupError

logger = logging.getLogger(__name__)


def allocate(
    deployment: Deployment,
    tp: TpGroup,
    platform: Platform,
    attention: AttentionBackend[Any],
    block_tokens: int,
    share: Callable[[], RankShare],
    draft_block_nbytes: int = 0,
) -> torch.Tensor:
    """Zeros [layers, *kv_shape of the attention backend], with the same number of blocks on all ranks.

    ``share``: what this rank's steps need of its GPU; asked where the deployment does not say how large the cache is.
    ``draft_block_nbytes``: of a block of the draft model's cache, which this rank allocates besides.

    Raises StartupError if one sequence of max_model_len does not fit, or if the memory is not there.
    """
    (group,) = deployment.model.text.kv_groups
    num_layers, dtype = len(group.layers), KV_DTYPES[deployment.kv_dtype]
    if deployment.kv_tokens is not None:
        num_blocks = deployment.kv_tokens // block_tokens
        if deployment.config.nnodes > 1:  # machines with different memory
            num_blocks = _agreed(num_blocks, tp)
    else:
        nbytes = block_nbytes(num_layers, dtype, attention, block_tokens) + draft_block_nbytes
        num_blocks = _blocks_that_fit(deployment, tp, platform, block_tokens, nbytes, share())
    per_sequence = -(-deployment.max_model_len // block_tokens)
    if num_blocks < per_sequence:
        raise StartupError(
            f"the KV cache holds {num_blocks * block_tokens} tokens, less than one sequence of "
            f"{deployment.max_model_len}: raise --kv-cache-gb or --gpu-memory-utilization, or lower --max-model-len"
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
    deployment: Deployment, tp: TpGroup, platform: Platform, block_tokens: int, block_nbytes: int, share: RankShare
) -> int:
    """Blocks that fit in every rank's GPU, at most twice what all slots can use."""
    useful = 2 * deployment.config.max_num_seqs * -(-deployment.max_model_len // block_tokens)
    ranks = -(-len(deployment.ranks_here) // platform.num_devices)
    platform.release_cached_memory()
    # Two barriers: every rank has loaded before one measures, and every rank has measured before one allocates.
    tp.sum(torch.zeros(1, device=platform.device))
    card = platform.device_memory()
    room = gpu_memory.kv_nbytes(card, share, deployment.config.gpu_memory_utilization, ranks)
    logger.info(
        "%.0f MiB for the KV cache: of %.0f MiB %.0f are in use, a step needs %.0f and graphs %.0f; ranks on it: %d",
        *(nbytes / MIB for nbytes in (room, card.total_nbytes, card.used_nbytes, *share)),
        ranks,
    )
    return _agreed(min(room // block_nbytes, useful), tp)


def _agreed(num_blocks: int, tp: TpGroup) -> int:
    """The smallest of all ranks' numbers."""
    return -tp.worst([-num_blocks])[0]
