"""What a rank and the visual servers take of one GPU beside weights and the KV cache, as an estimate. Pure."""

from __future__ import annotations

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.resolved import gpu_memory
from mmserve.config.resolved.deployment import DTYPE_BYTES, Dtype
from mmserve.config.resolved.graph_ladder import ladder


def on_card_nbytes(config: Config, model: ModelSpec, dtype: Dtype) -> int:
    """With all visual servers on this card."""
    text, size, rows = model.text, DTYPE_BYTES[dtype], config.max_num_batched_tokens
    step = gpu_memory.step_nbytes(rows, text.hidden_size, max(text.intermediate_sizes), config.tp, size)
    step = max(step, gpu_memory.sampler_nbytes(config.max_num_seqs, text.vocab_size))
    rungs = () if config.enforce_eager else ladder(config.max_num_seqs)
    of_rank = gpu_memory.CONTEXT_NBYTES + step + gpu_memory.graphs_nbytes(rungs, step, rows, text.vocab_size)
    if (vision := model.vision) is None:
        return of_rank
    images = config.visual_batch_size or gpu_memory.BATCH_IMAGES
    sizes = vision.hidden_size, vision.intermediate_size, size
    room = gpu_memory.tower_nbytes(images, gpu_memory.MAX_PATCHES, *sizes)
    return of_rank + config.visual_workers * (gpu_memory.CONTEXT_NBYTES + room)
