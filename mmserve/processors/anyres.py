"""Arithmetic of LLaVA's "any resolution": which grid of tiles a picture gets, and which rows of it remain.

A picture keeps its proportions on its grid; the margins are black, and rows of the margins are dropped again. Each line
of what remains ends with a row that says so. Sizes and counts are those of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mmserve.processors.pixels.sources import Size

SHRINKING = 1.1
"""LLaVA-OneVision keeps up to the square of this times as many features as its limit says."""


def best_resolution(width: int, height: int, resolutions: Sequence[Size]) -> Size:
    """The resolution that keeps the most pixels of a picture; of several, the one with the smallest margins."""
    best, most_kept, least_wasted = resolutions[0], 0, float("inf")
    for resolution in resolutions:
        scale = min(resolution[0] / width, resolution[1] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        wasted = resolution[0] * resolution[1] - kept
        if kept > most_kept or (kept == most_kept and wasted < least_wasted):
            best, most_kept, least_wasted = resolution, kept, wasted
    return best


def fitted_size(width: int, height: int, resolution: Size) -> Size:
    """(width, height) of a picture that fills its resolution in one direction."""
    across, down = resolution[0] / width, resolution[1] / height
    if across < down:
        return resolution[0], min(math.ceil(height * across), resolution[1])
    return min(math.ceil(width * down), resolution[0]), resolution[1]


def without_margins(width: int, height: int, features: Size) -> Size:
    """(columns, rows) of the features of a grid that are not of its margins. ``features``: of the whole grid."""
    columns, rows = features
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return columns, rows - (rows - kept) // 2 * 2
    kept = int(round(width * (rows / height), 7))
    return columns - (columns - kept) // 2 * 2, rows


def shrunk(features: Size, most: int) -> Size:
    """(columns, rows) after LLaVA-OneVision's interpolation, which keeps about ``most`` features."""
    columns, rows = features
    ratio = math.sqrt(rows * columns / most)
    return (int(columns // ratio), int(rows // ratio)) if ratio > SHRINKING else features
