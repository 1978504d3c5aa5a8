"""About the memory that one step, or one batch of the vision tower, computes in on a CPU. Knows shapes only."""

from __future__ import annotations

from mmserve.config.deployment import DTYPE_BYTES, Deployment
from mmserve.model_backend.layers.mlp import CPU_ROWS
from mmserve.runtime.memory_allocator import prefault_heap

_PICTURE_NBYTES = 32 << 20
"""One of 8 megapixels, as Pillow keeps it; larger ones come and go."""


def take_for_steps(deployment: Deployment) -> None:
    """For a rank: of each token of the largest step the residual, what goes into and comes out of attention, and of
    some rows the halves of an MLP before and after the gate; with what the allocator loses between, as measured."""
    text, tokens = deployment.model.text, deployment.config.max_num_batched_tokens
    between = 5 * text.intermediate_size // deployment.config.tp
    _take(deployment, tokens * 6 * text.hidden_size + min(tokens, CPU_ROWS) * between)


def take_for_images(deployment: Deployment, images: int) -> None:
    """For a visual server: the same for the patches of a batch of so many images, and a picture being decoded."""
    vision = deployment.model.vision
    assert vision is not None, "a text model has no vision tower"
    patches = (vision.image_size // vision.patch_size) ** 2
    _take(deployment, images * patches * (4 * vision.hidden_size + vision.intermediate_size), _PICTURE_NBYTES)


def _take(deployment: Deployment, elements: int, more_nbytes: int = 0) -> None:
    if deployment.device == "cpu":
        prefault_heap(elements * DTYPE_BYTES[deployment.dtype] + more_nbytes)
