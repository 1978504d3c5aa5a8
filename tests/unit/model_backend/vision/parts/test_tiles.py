"""Patches of tiles are what a convolution that steps by whole patches multiplies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmserve.model_backend.vision.parts.tiles import patches_of

PATCH = 4


@pytest.mark.parametrize(("height", "width"), [(8, 12), (11, 13)])
def test_patches_are_those_of_a_convolution(height: int, width: int) -> None:
    """Which does not read what is left behind the last whole patch, as of LLaVA-OneVision's tiles of 384 pixels."""
    random = torch.Generator().manual_seed(0)
    tiles = torch.randint(-9, 9, (2, 3, height, width), generator=random).float()
    weights = torch.randint(-9, 9, (5, 3, PATCH, PATCH), generator=random).float()
    found = patches_of(tiles, PATCH) @ weights.flatten(1).T
    convolved = F.conv2d(tiles, weights, stride=PATCH)
    assert torch.equal(found, convolved.flatten(2).transpose(1, 2).flatten(0, 1))
