"""Tiles of pictures: encoded some at a time, cut into patches, and rows joined with their neighbours."""

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


def patches_of(tiles: torch.Tensor, size: int) -> torch.Tensor:
    """[B, 3, height, width] -> [B * patches, 3 * size * size]: row by row, each in the order of a kernel's weights.

    A convolution that steps by whole patches is the product of these rows and its weights. Neither reads the pixels
    behind the last whole patch: tiles of 384 have 27 patches of 14.
    """
    batch, channels, height, width = tiles.shape
    rows, columns = height // size, width // size
    whole = tiles[..., : rows * size, : columns * size]
    blocks = whole.reshape(batch, channels, rows, size, columns, size)
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


def space_to_depth(features: torch.Tensor, height: int, width: int, size: int) -> torch.Tensor:
    """[B, height * width, channels] -> [B, height * width / size^2, size * size * channels].

    Blocks of ``size`` x ``size`` neighbours, row by row; a block is its features row by row. Hugging Face's code calls
    this pixel shuffle.
    """
    grid = features.reshape(len(features), height // size, size, width // size, size, features.shape[2])
    return grid.transpose(2, 3).flatten(3).flatten(1, 2)
