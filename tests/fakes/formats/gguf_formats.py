"""Rounds matrices to GGUF's formats as simply as can be, all blocks at once: bytes, and the numbers they stand for.

Written from the format's description (ggml-common.h), not from the reader under test. llama.cpp chooses scales with
more care; what they stand for is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int64]
Rounded = tuple[Bytes, Floats]
"""Of blocks [n, numbers of a block]: their bytes [n, bytes of a block], and the numbers they stand for."""


class Stored(NamedTuple):
    """``data``: of all rows. ``numbers``: float32, of the shape of the matrix."""

    data: bytes
    numbers: Floats


def _half(numbers: Floats) -> Floats:
    return numbers.astype(np.float16).astype(np.float32)


def _bytes_of(*halves: Floats) -> Bytes:
    """[n, 2 per half] for halves [n]."""
    return np.stack(halves, 1).astype(np.float16).view(np.uint8)


def _rounded(blocks: Floats, scale: Floats, lowest: Floats, top: int) -> Codes:
    """``scale`` and ``lowest`` [n]: of each block. A block without a scale has the codes 0."""
    steps = np.divide(blocks - lowest[:, None], scale[:, None], out=np.zeros_like(blocks), where=scale[:, None] != 0)
    return np.clip(np.rint(steps), 0, top).astype(np.int64)


def _nearest(numbers: Floats, unit: Floats) -> Floats:
    """Whole multiples of ``unit`` [n] that are nearest to ``numbers`` [n, ...]; 0 where there is no unit."""
    divisors = unit.reshape(-1, *[1] * (numbers.ndim - 1))
    return np.rint(np.divide(numbers, divisors, out=np.zeros_like(numbers), where=divisors != 0))


def _low_halves(codes: Codes) -> Bytes:
    """Of 32 codes: those of input i and i + 16 in one byte."""
    return ((codes[:, :16] & 15) | (codes[:, 16:] & 15) << 4).astype(np.uint8)


def _fifth_bits(codes: Codes) -> Bytes:
    return np.packbits((codes >> 4 & 1).astype(np.uint8), axis=1, bitorder="little")


def _symmetric(blocks: Floats, bits: int) -> Rounded:
    """Q4_0, Q5_0, Q8_0."""
    middle = 1 << bits - 1
    scale = _half(np.abs(blocks).max(1) / (middle - 1))
    codes = _rounded(blocks, scale, -scale * middle, 2 * middle - 1)
    if bits == 8:
        rest = [(codes - middle).astype(np.int8).view(np.uint8)]
    else:
        rest = [_fifth_bits(codes)] * (bits == 5) + [_low_halves(codes)]
    return np.concatenate([_bytes_of(scale), *rest], 1), scale[:, None] * (codes - middle).astype(np.float32)


def _with_minimum(blocks: Floats, bits: int) -> Rounded:
    """Q4_1, Q5_1."""
    top, minimum = (1 << bits) - 1, _half(blocks.min(1))
    scale = _half((blocks.max(1) - minimum) / top)
    codes = _rounded(blocks, scale, minimum, top)
    parts = [_bytes_of(scale, minimum), *[_fifth_bits(codes)] * (bits == 5), _low_halves(codes)]
    return np.concatenate(parts, 1), scale[:, None] * codes.astype(np.float32) + minimum[:, None]


def _of_six_bits(scales: Codes, minima: Codes) -> Bytes:
    """8 scales and 8 minima in 12 bytes: the first four of each below 64, whose upper bits belong to the last four."""
    found = [scales[:, j] | scales[:, j + 4] >> 4 << 6 for j in range(4)]
    found += [minima[:, j] | minima[:, j + 4] >> 4 << 6 for j in range(4)]
    found += [scales[:, j + 4] & 15 | (minima[:, j + 4] & 15) << 4 for j in range(4)]
    return np.stack(found, 1).astype(np.uint8)


def _superblock(blocks: Floats, bits: int) -> Rounded:
    """Q4_K, Q5_K."""
    groups, top = blocks.reshape(-1, 8, 32), (1 << bits) - 1
    lowest = np.maximum(-groups.min(2), 0)
    steps = (groups.max(2) + lowest) / top
    unit, minimum_unit = _half(steps.max(1) / 63), _half(lowest.max(1) / 63)
    scales, minima = _nearest(steps, unit), _nearest(lowest, minimum_unit)
    scale, minimum = unit[:, None] * scales, minimum_unit[:, None] * minima
    codes = _rounded(groups.reshape(-1, 32), scale.reshape(-1), -minimum.reshape(-1), top).reshape(groups.shape)
    low = [(codes[:, j] & 15 | (codes[:, j + 1] & 15) << 4).astype(np.uint8) for j in range(0, 8, 2)]
    fifths = sum((codes[:, j] >> 4 & 1) << j for j in range(8))
    high = [np.asarray(fifths, np.uint8)] * (bits == 5)
    six_bits = _of_six_bits(scales.astype(np.int64), minima.astype(np.int64))
    numbers = scale[:, :, None] * codes.astype(np.float32) - minimum[:, :, None]
    return np.concatenate([_bytes_of(unit, minimum_unit), six_bits, *high, *low], 1), numbers


def _q6_k(blocks: Floats) -> Rounded:
    groups = blocks.reshape(-1, 16, 16)
    # The number of the largest magnitude gets the code -32, so that scales have both signs.
    extremes = np.take_along_axis(groups, np.abs(groups).argmax(2)[:, :, None], 2)[:, :, 0]
    steps = -extremes / 32
    unit = _half(np.abs(steps).max(1) / 127)
    scales = _nearest(steps, unit).astype(np.int8)
    scale = unit[:, None] * scales.astype(np.float32)
    codes = np.clip(_nearest(groups.reshape(-1, 16), scale.reshape(-1)), -32, 31).astype(np.int64).reshape(groups.shape)
    numbers = scale[:, :, None] * codes.astype(np.float32)
    stored = (codes + 32).reshape(-1, 2, 4, 32)
    low, high = [], []
    for half in (0, 1):
        first, second, third, fourth = (stored[:, half, quarter] for quarter in range(4))
        low += [first & 15 | (third & 15) << 4, second & 15 | (fourth & 15) << 4]
        high.append(first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6)
    parts = [each.astype(np.uint8) for each in (*low, *high)]
    return np.concatenate([*parts, scales.view(np.uint8), _bytes_of(unit)], 1), numbers


_BLOCKS: dict[str, tuple[int, Callable[[Floats], Rounded]]] = {
    "Q4_0": (32, partial(_symmetric, bits=4)),
    "Q4_1": (32, partial(_with_minimum, bits=4)),
    "Q5_0": (32, partial(_symmetric, bits=5)),
    "Q5_1": (32, partial(_with_minimum, bits=5)),
    "Q8_0": (32, partial(_symmetric, bits=8)),
    "Q4_K": (256, partial(_superblock, bits=4)),
    "Q5_K": (256, partial(_superblock, bits=5)),
    "Q6_K": (256, _q6_k),
}
BLOCK_FORMATS = tuple(_BLOCKS)


def stored(weight: Floats, kind: str) -> Stored:
    """Raises ValueError if rows are no whole number of blocks."""
    if kind == "F32":
        return Stored(weight.astype(np.float32).tobytes(), weight)
    if kind == "F16":
        return Stored(weight.astype(np.float16).tobytes(), weight.astype(np.float16).astype(np.float32))
    if kind == "BF16":
        bits = weight.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)  # cut off
        return Stored((bits >> 16).astype(np.uint16).tobytes(), bits.view(np.float32))
    size, rounded = _BLOCKS[kind]
    data, numbers = rounded(weight.astype(np.float32).reshape(-1, size))
    return Stored(data.tobytes(), numbers.reshape(weight.shape).astype(np.float32))
