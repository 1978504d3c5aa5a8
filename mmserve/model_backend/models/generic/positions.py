"""Whether the positions of a model of transformers are those of ``models.positions``, found by asking the model."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import torch

from mmserve.messages.media import Grid, Handle, MediaSpan
from mmserve.model_backend.models.generic.architecture import Architecture
from mmserve.model_backend.models.positions import grid_positions
from mmserve.runtime.errors import StartupError

_ONE_AXIS, _THREE_AXES = 1, 3
_WHOLE_IMAGES = "token_type_ids"
"""Argument by which attention reads all of a picture."""
_KINDS = "mm_token_type_ids"
"""Argument by which positions depend on what is a picture."""
_PARTS: tuple[int | Grid, ...] = (3, (1, 2, 3), 2, (1, 4, 2), 5)
"""Of the prompt that is tried: tokens of text, and grids of pictures."""


def axes_of(architecture: Architecture, base: Any) -> int:
    """1, or 3 (M-RoPE). ``base``: the model without its head. Raises StartupError for positions of another kind."""
    name = architecture.model_class.__name__
    arguments = inspect.signature(inspect.unwrap(type(base).forward)).parameters
    if _WHOLE_IMAGES in arguments:
        raise StartupError(f"{name} needs {_WHOLE_IMAGES}: its attention depends on what is a picture")
    if _KINDS not in arguments:
        return _ONE_AXIS
    if getattr(architecture.config.vision_config, "deepstack_visual_indexes", None):
        raise StartupError(f"{name} reads rows of pictures in several layers (DeepStack)")
    if not hasattr(base, "get_rope_index") or not _found(architecture, base):
        raise StartupError(f"{name} needs {_KINDS}: its attention or its positions depend on what is a picture")
    return _THREE_AXES


def _found(architecture: Architecture, base: Any) -> bool:
    """True if the model gives the positions of ``grid_positions``."""
    merge = int(getattr(architecture.config.vision_config, "spatial_merge_size", 1))
    lengths = [part if isinstance(part, int) else math.prod(part) for part in _PARTS]
    starts = np.cumsum([0, *lengths])
    spans = [
        MediaSpan(
            start=int(start), num_tokens=length, item_id=0, data=None, embed=Handle(0, 0, 0), media_index=0, grid=part
        )
        for part, length, start in zip(_PARTS, lengths, starts[:-1], strict=True)
        if not isinstance(part, int)
    ]
    kinds = torch.zeros(1, int(starts[-1]), dtype=torch.int64)
    for span in spans:
        kinds[:, span.start : span.start + span.num_tokens] = 1
    ids = torch.where(kinds == 1, architecture.config.image_token_id, 1)
    grids = torch.tensor([[t, merge * h, merge * w] for t, h, w in (span.grid for span in spans)])
    theirs, _ = base.get_rope_index(
        input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=torch.ones_like(ids)
    )
    until_last_image, shift = grid_positions(spans)
    rest = np.arange(until_last_image.shape[1], len(ids[0])) + shift
    ours = np.concatenate([until_last_image, np.broadcast_to(rest, (_THREE_AXES, len(rest)))], axis=1)
    return theirs.shape == (_THREE_AXES, 1, len(ids[0])) and np.array_equal(theirs[:, 0].numpy(), ours)
