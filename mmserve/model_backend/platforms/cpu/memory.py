"""Memory of a CPU: what one step, or one batch of the vision tower, computes in, and tensors that take it when used."""

from __future__ import annotations

import mmap
from math import prod

import torch

from mmserve.config.resolved.deployment import DTYPE_BYTES, Deployment

MAX_MLP_ROWS = 512
"""Rows of an MLP computed at once. Its inner activations are several times as wide as a row."""
_MAX_PATCHES = 4096
"""Of one image; more are allocated when they come."""
_PICTURE_NBYTES = 32 << 20
"""A picture of 8 megapixels, as Pillow keeps it; larger ones are allocated when they come."""


def step_nbytes(deployment: Deployment) -> int:
    """Of the largest step of a rank: for each token the residual, the input and output of attention, and an image's
    further streams.

    For ``MAX_MLP_ROWS`` tokens also the inner activations of the MLP. The factors include measured losses of the
    allocator.
    """
    text, tokens = deployment.model.text, deployment.config.max_num_batched_tokens
    mlp = min(tokens, MAX_MLP_ROWS) * (5 * max(text.intermediate_sizes) // deployment.config.tp)
    vision = deployment.model.vision
    widths = 6 if vision is None else 5 + vision.streams
    return (tokens * widths * text.hidden_size + mlp) * DTYPE_BYTES[deployment.activation_dtype]


def images_nbytes(deployment: Deployment, max_images: int) -> int:
    """Of a batch of images in the vision tower, and of one picture being decoded."""
    vision = deployment.model.vision
    assert vision is not None, "a text model has no vision tower"
    patches = min(_MAX_PATCHES, deployment.max_image_rows * vision.patches_per_row)
    elements = max_images * patches * (4 * vision.hidden_size + vision.intermediate_size)
    return elements * DTYPE_BYTES[deployment.activation_dtype] + _PICTURE_NBYTES


def zeros_when_used(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros, whose pages the kernel makes when they are first used.

    Raises MemoryError if it refuses the size.
    """
    try:
        mapping = mmap.mmap(-1, prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"mmap: {error.strerror}") from error
    return torch.frombuffer(mapping, dtype=dtype).view(shape)
