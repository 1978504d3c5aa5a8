"""Pillow's whole numbers for resizing along one axis: what each pixel of the result takes of which pixels.

The arithmetic is that of Pillow's ``Resample.c``, operation by operation, so a device that adds up these numbers gets
Pillow's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Floats = npt.NDArray[np.float64]
BITS = 22
"""Behind the point of a weight."""


class Coefficients(NamedTuple):
    """A byte of the result is (2 ** (BITS - 1) + sum of weights * bytes) >> BITS, within 0 and 255."""

    first: npt.NDArray[np.int32]
    """[result]: the first pixel of each one's sum."""
    weights: npt.NDArray[np.int32]
    """[taps, result]: of that pixel and of those behind it. Weights of pixels beyond the edge are 0."""


def coefficients(length: int, result: int, resample: Image.Resampling) -> Coefficients:
    """From ``length`` pixels to ``result``, with one of ``FILTERS``."""
    weight_of, support = FILTERS[resample]
    scale = length / result
    stretch = max(scale, 1.0)
    support *= stretch
    centres = (np.arange(result) + 0.5) * scale
    first = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    end = np.minimum((centres + support + 0.5).astype(np.int64), length)
    pixels = first[:, None] + np.arange(math.ceil(support) * 2 + 1)
    found = weight_of((pixels - centres[:, None] + 0.5) * (1.0 / stretch))
    found[pixels >= end[:, None]] = 0.0
    totals = np.cumsum(found, axis=1)[:, -1:]  # one after the other, as Pillow adds
    found = np.divide(found, totals, out=found, where=totals != 0.0) * (1 << BITS)
    whole = np.where(found < 0, found - 0.5, found + 0.5).astype(np.int32)
    return Coefficients(first.astype(np.int32), np.ascontiguousarray(whole.T))


def _box(x: Floats) -> Floats:
    return ((x > -0.5) & (x <= 0.5)).astype(np.float64)


def _bilinear(x: Floats) -> Floats:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _bicubic(x: Floats) -> Floats:
    x = np.abs(x)
    a = -0.5
    inner = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    outer = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, inner, np.where(x < 2.0, outer, 0.0))


def _lanczos(x: Floats) -> Floats:
    return np.where((x >= -3.0) & (x < 3.0), _sinc(x) * _sinc(x / 3), 0.0)


def _sinc(x: Floats) -> Floats:
    angles = np.where(x == 0.0, 1.0, x * math.pi)
    # The C library's sine, as Pillow's: numpy's own differs in the last bit.
    sines = np.fromiter(map(math.sin, angles.ravel().tolist()), np.float64, angles.size).reshape(angles.shape)
    return np.where(x == 0.0, 1.0, sines / angles)


FILTERS: dict[Image.Resampling, tuple[Callable[[Floats], Floats], float]] = {
    Image.Resampling.BOX: (_box, 0.5),
    Image.Resampling.BILINEAR: (_bilinear, 1.0),
    Image.Resampling.BICUBIC: (_bicubic, 2.0),
    Image.Resampling.LANCZOS: (_lanczos, 3.0),
}
"""The weight of a pixel at a distance from the centre, and the distance from which on it is 0."""
