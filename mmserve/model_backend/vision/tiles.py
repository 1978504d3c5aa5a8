"""Pictures that are several tiles of one size, encoded tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mmserve.model_backend.vision.interface import ViewTensors, joined

_TILES_AT_ONCE = 4
"""A picture may have 13 tiles of a thousand patches; activations of all of them would take hundreds of MiB."""


def encode_tiles(pictures: Sequence[ViewTensors], encode: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """The rows [rows, hidden] of each picture, tile by tile. ``encode``: tiles [B, 3, S, S] -> [B, rows, hidden]."""
    tiles, counts = joined(pictures)
    rows = torch.cat([encode(part) for part in torch.split(tiles, _TILES_AT_ONCE)])
    return [part.flatten(0, 1) for part in torch.split(rows, counts)]
