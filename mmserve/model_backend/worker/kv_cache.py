"""The paged K/V cache as one tensor, and how many blocks fit. Which block holds what is the router's business."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.config.deployment import KV_BLOCK_TOKENS, Deployment
from mmserve.messages.step import BlockCopy
from mmserve.model_backend.distributed import TpGroup
from mmserve.runtime.errors import StartupError
from mmserve.runtime.memory_allocator import prefer_huge_pages

_FREE_SHARE = 0.85
"""Of the GPU memory free after loading; the rest is for activations and for a vision tower on the same GPU."""


def block_shape(deployment: Deployment, tp: TpGroup) -> tuple[int, ...]:
    """One block of one layer: [tokens, 2 (K, V), kv_heads of this rank, dim]."""
    text = deployment.model.text
    return (KV_BLOCK_TOKENS, 2, tp.share(text.num_kv_heads), text.head_dim)


def allocate(deployment: Deployment, tp: TpGroup, like: torch.Tensor) -> torch.Tensor:
    """[layers, blocks, tokens, 2, kv_heads, dim] in the dtype and on the device of ``like``; same blocks on all ranks.

    Zeros, not uninitialised memory: a masked weight of 0 must not meet NaN. And zeros that are written: memory that is
    asked for is taken at start, so that it does not grow while the server runs. Raises StartupError without room for
    one sequence of max_model_len.
    """
    shape = block_shape(deployment, tp)
    num_layers = deployment.model.text.num_layers
    if deployment.kv_tokens is not None:
        num_blocks = deployment.kv_tokens // KV_BLOCK_TOKENS
    else:
        block_nbytes = num_layers * torch.Size(shape).numel() * like.element_size()
        num_blocks = _blocks_that_fit(deployment, tp, like.device, block_nbytes)
    per_sequence = -(-deployment.max_model_len // KV_BLOCK_TOKENS)
    if num_blocks < per_sequence:
        raise StartupError(
            f"the KV cache holds {num_blocks * KV_BLOCK_TOKENS} tokens, less than one sequence of "
            f"{deployment.max_model_len}: raise --kv-cache-gb or lower --max-model-len"
        )
    kv = torch.empty((num_layers, num_blocks, *shape), dtype=like.dtype, device=like.device)
    if kv.is_cpu:
        prefer_huge_pages(kv.data_ptr(), kv.nbytes)
    return kv.zero_()


def copy_beginnings(kv: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
    """In all layers of ``kv`` (as allocated) at once; a block may be read for one copy and written by another."""
    read = [kv[:, copy.source, : copy.num_tokens].clone() for copy in copies]
    for copy, beginning in zip(copies, read, strict=True):
        kv[:, copy.target, : copy.num_tokens] = beginning


def _blocks_that_fit(deployment: Deployment, tp: TpGroup, device: torch.device, block_nbytes: int) -> int:
    """From the GPU's free memory, the smallest over ranks, but never more than twice what all slots can use."""
    assert device.type == "cuda", "on a CPU the supervisor decides kv_tokens"
    useful = 2 * deployment.config.max_num_seqs * -(-deployment.max_model_len // KV_BLOCK_TOKENS)
    sharers = -(-tp.size // torch.cuda.device_count())
    torch.cuda.empty_cache()
    # All ranks have loaded before any measures, and all have measured before any allocates.
    tp.sum(torch.zeros(1, device=device))
    free_nbytes = torch.cuda.mem_get_info(device)[0]
    fits = int(free_nbytes * _FREE_SHARE) // sharers // block_nbytes
    agreed = tp.min(torch.tensor([min(fits, useful)], device=device))
    return int(agreed.item())
