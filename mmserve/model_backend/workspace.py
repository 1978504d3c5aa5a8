"""About the memory that one step, or one batch of the vision tower, computes in on a CPU. Knows shapes only."""

from __future__ import annotations

from mmserve.deployment import DTYPE_BYTES, Deployment
from mmserve.heap import keep_freed_memory, take_workspace


def take_for_steps(deployment: Deployment) -> None:
    """For a rank: the residual, an input and an output of each token of the largest step, and the two halves of its
    MLP."""
    text, config = deployment.model.text, deployment.config
    width = 3 * text.hidden_size + 2 * text.intermediate_size // config.tp
    _take(deployment, config.max_num_batched_tokens * width)


def take_for_images(deployment: Deployment, images: int) -> None:
    """For a visual server: the same for the patches of a batch of so many images."""
    vision = deployment.model.vision
    assert vision is not None, "a text model has no vision tower"
    patches = (vision.image_size // vision.patch_size) ** 2
    _take(deployment, images * patches * (4 * vision.hidden_size + vision.intermediate_size))


def _take(deployment: Deployment, elements: int) -> None:
    if deployment.device == "cpu":
        keep_freed_memory()
        take_workspace(elements * DTYPE_BYTES[deployment.dtype])
