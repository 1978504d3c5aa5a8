"""Pixels as rows of patches, and patches joined with their neighbours."""

from __future__ import annotations

import torch


def patches_of(tiles: torch.Tensor, size: int) -> torch.Tensor:
    """[B, 3, height, width] -> [B * patches, 3 * size * size]: row by row, each in the order of a kernel's weights.

    A convolution that steps by whole patches is the product of these rows and its weights.
    """
    batch, channels, height, width = tiles.shape
    blocks = tiles.reshape(batch, channels, height // size, size, width // size, size)
    return blocks.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(0, 2)


def space_to_depth(features: torch.Tensor, height: int, width: int, size: int) -> torch.Tensor:
    """[B, height * width, channels] -> [B, height * width / size^2, size * size * channels].

    Blocks of ``size`` x ``size`` neighbours, row by row; a block is its features row by row. Hugging Face's code calls
    this pixel shuffle.
    """
    grid = features.reshape(len(features), height // size, size, width // size, size, features.shape[2])
    return grid.transpose(2, 3).flatten(3).flatten(1, 2)
