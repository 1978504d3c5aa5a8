"""Measures what the largest step of a rank computes in, before its KV cache takes the rest of the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import RankShare, graphs_nbytes, sampler_nbytes
from mmserve.config.resolved.graph_ladder import ladder
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionInput, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.device import KV_DTYPES, is_out_of_memory
from mmserve.model_backend.platforms.interface import Platform
from mmserve.runtime.errors import StartupError

_BLOCKS = 64
"""Of the small cache that the step reads and writes instead of its own: what it computes does not matter."""


def graph_rungs(deployment: Deployment, tp: TpGroup) -> Sequence[int]:
    """Numbers of rows for which decode steps may be captured. Collectives in the host's memory cannot be."""
    if deployment.config.enforce_eager or (tp.size > 1 and tp.on_host):
        return ()
    return ladder(deployment.config.max_num_seqs)


def rank_share(
    deployment: Deployment,
    model: DecoderModel,
    platform: Platform,
    attention: AttentionBackend[Any],
    block_tokens: int,
    rungs: Sequence[int],
) -> RankShare:
    """What this rank's steps need of its device."""
    step_nbytes = step_peak_nbytes(deployment, model, platform, attention, block_tokens)
    rows, vocab_size = deployment.config.max_num_batched_tokens, deployment.model.text.vocab_size
    return RankShare(step_nbytes, graphs_nbytes(rungs, step_nbytes, rows, vocab_size))


def step_peak_nbytes(
    deployment: Deployment,
    model: DecoderModel,
    platform: Platform,
    attention: AttentionBackend[Any],
    block_tokens: int,
) -> int:
    """Bytes beside what is held already, of a step with as many tokens as a step may have, each prompt's last ones.

    All ranks call it together. Raises StartupError if the step does not fit.
    """
    text, config = deployment.model.text, deployment.config
    max_blocks = -(-deployment.max_model_len // block_tokens)
    limits = StepLimits(config.max_num_batched_tokens, config.max_num_seqs, max_blocks, block_tokens)
    shape = (text.num_layers, *attention.kv_shape(_BLOCKS, block_tokens))
    step = largest_step(limits, deployment.max_model_len)
    rows = torch.zeros(int(step.counts.sum()), dtype=torch.int64, device=platform.device)

    @torch.inference_mode()
    def compute() -> None:
        cache = platform.allocate_kv_cache(shape, KV_DTYPES[deployment.kv_dtype])
        wanted = torch.arange(min(len(rows), config.max_num_seqs), device=platform.device)
        metadata = attention.builder(limits).build(step)
        outputs = model.forward(model.embed(rows), rows[None], cache, metadata, wanted)
        model.logits(outputs)

    try:
        forward = platform.peak_nbytes(compute)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise StartupError(
            f"a step of {len(rows)} tokens does not fit the memory of {platform.device_name} beside the weights: lower "
            "--max-num-batched-tokens, or end what else uses that memory"
        ) from error
    return max(forward, sampler_nbytes(config.max_num_seqs, text.vocab_size))


def largest_step(limits: StepLimits, max_model_len: int) -> AttentionInput:
    """Sequences that are ``max_model_len`` long after it, with ``limits.max_tokens`` rows among them."""
    whole, rest = divmod(limits.max_tokens, max_model_len)
    counts = np.array([max_model_len] * whole + [rest] * (rest > 0))
    starts = max_model_len - counts
    tables = np.arange(limits.max_blocks)[None].repeat(len(counts), 0) % _BLOCKS
    positions = np.concatenate([np.arange(start, max_model_len) for start in starts.tolist()])
    mapping = positions % (_BLOCKS * limits.block_tokens)
    return AttentionInput(np.arange(len(counts)), starts, counts, tables, mapping)
