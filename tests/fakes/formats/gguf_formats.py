"""Rounds matrices to GGUF's formats as simply as can be, block by block: bytes, and the numbers they stand for.

Written from the format's description (ggml-common.h), not from the reader under test. llama.cpp chooses scales with
more care; what they stand for is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


class Stored(NamedTuple):
    """``data``: of all rows. ``numbers``: float32, of the shape of the matrix."""

    data: bytes
    numbers: Floats


def _half(number: float) -> np.float32:
    return np.float32(np.float16(number))


def _bytes_of(*halves: np.float32) -> Bytes:
    return np.array(halves, np.float16).view(np.uint8)


def _rounded(block: Floats, scale: np.float32, lowest: np.float32, top: int) -> npt.NDArray[np.int64]:
    steps = (block - lowest) / scale if scale else np.zeros_like(block)
    return np.clip(np.rint(steps), 0, top).astype(np.int64)


def _low_halves(codes: npt.NDArray[np.int64]) -> Bytes:
    """Of 32 codes: those of input i and i + 16 in one byte."""
    return ((codes[:16] & 15) | (codes[16:] & 15) << 4).astype(np.uint8)


def _fifth_bits(codes: npt.NDArray[np.int64]) -> Bytes:
    return np.packbits((codes >> 4 & 1).astype(np.uint8), bitorder="little")


def _symmetric(bits: int) -> Callable[[Floats], tuple[Bytes, Floats]]:
    """Q4_0, Q5_0, Q8_0."""

    def block_of(block: Floats) -> tuple[Bytes, Floats]:
        middle = 1 << bits - 1
        scale = _half(float(np.abs(block).max()) / (middle - 1))
        codes = _rounded(block, scale, -scale * middle, 2 * middle - 1)
        if bits == 8:
            rest = [(codes - middle).astype(np.int8).view(np.uint8)]
        else:
            rest = [_fifth_bits(codes)] * (bits == 5) + [_low_halves(codes)]
        return np.concatenate([_bytes_of(scale), *rest]), scale * (codes - middle).astype(np.float32)

    return block_of


def _with_minimum(bits: int) -> Callable[[Floats], tuple[Bytes, Floats]]:
    """Q4_1, Q5_1."""

    def block_of(block: Floats) -> tuple[Bytes, Floats]:
        top, minimum = (1 << bits) - 1, _half(float(block.min()))
        scale = _half(float(block.max() - minimum) / top)
        codes = _rounded(block, scale, minimum, top)
        parts = [_bytes_of(scale, minimum), *[_fifth_bits(codes)] * (bits == 5), _low_halves(codes)]
        return np.concatenate(parts), scale * codes.astype(np.float32) + minimum

    return block_of


def _of_six_bits(scales: npt.NDArray[np.int64], minima: npt.NDArray[np.int64]) -> Bytes:
    """8 scales and 8 minima in 12 bytes: the first four of each below 64, whose upper bits belong to the last four."""
    found = np.zeros(12, np.int64)
    for j in range(4):
        found[j] = scales[j] | scales[j + 4] >> 4 << 6
        found[j + 4] = minima[j] | minima[j + 4] >> 4 << 6
        found[j + 8] = scales[j + 4] & 15 | (minima[j + 4] & 15) << 4
    return found.astype(np.uint8)


def _superblock(bits: int) -> Callable[[Floats], tuple[Bytes, Floats]]:
    """Q4_K, Q5_K."""

    def block_of(block: Floats) -> tuple[Bytes, Floats]:
        groups, top = block.reshape(8, 32), (1 << bits) - 1
        lowest = np.maximum(-groups.min(1), 0)
        steps = (groups.max(1) + lowest) / top
        unit, minimum_unit = _half(float(steps.max()) / 63), _half(float(lowest.max()) / 63)
        scales = np.rint(steps / unit).astype(np.int64) if unit else np.zeros(8, np.int64)
        minima = np.rint(lowest / minimum_unit).astype(np.int64) if minimum_unit else np.zeros(8, np.int64)
        scale, minimum = unit * scales.astype(np.float32), minimum_unit * minima.astype(np.float32)
        codes = np.stack([_rounded(groups[j], scale[j], -minimum[j], top) for j in range(8)])
        low = [(codes[j] & 15 | (codes[j + 1] & 15) << 4).astype(np.uint8) for j in range(0, 8, 2)]
        fifths = np.zeros(32, np.int64)
        for j in range(8):
            fifths |= (codes[j] >> 4 & 1) << j
        high = [fifths.astype(np.uint8)] * (bits == 5)
        numbers = scale[:, None] * codes.astype(np.float32) - minimum[:, None]
        return np.concatenate([_bytes_of(unit, minimum_unit), _of_six_bits(scales, minima), *high, *low]), numbers

    return block_of


def _q6_k(block: Floats) -> tuple[Bytes, Floats]:
    groups = block.reshape(16, 16)
    # The number of the largest magnitude gets the code -32, so that scales have both signs.
    extremes = groups[np.arange(16), np.abs(groups).argmax(1)]
    steps = -extremes / 32
    unit = _half(float(np.abs(steps).max()) / 127)
    scales = np.rint(steps / unit).astype(np.int8) if unit else np.zeros(16, np.int8)
    scale = unit * scales.astype(np.float32)
    codes = np.zeros((16, 16), np.int64)
    for j in range(16):
        if scale[j]:
            codes[j] = np.clip(np.rint(groups[j] / scale[j]), -32, 31)
    numbers = scale[:, None] * codes.astype(np.float32)
    stored = (codes + 32).reshape(2, 4, 32)
    low, high = [], []
    for first, second, third, fourth in stored:
        low += [first & 15 | (third & 15) << 4, second & 15 | (fourth & 15) << 4]
        high.append(first >> 4 | second >> 4 << 2 | third >> 4 << 4 | fourth >> 4 << 6)
    parts = [each.astype(np.uint8) for each in (*low, *high)]
    return np.concatenate([*parts, scales.view(np.uint8), _bytes_of(unit)]), numbers


_BLOCKS: dict[str, tuple[int, Callable[[Floats], tuple[Bytes, Floats]]]] = {
    "Q4_0": (32, _symmetric(4)),
    "Q4_1": (32, _with_minimum(4)),
    "Q5_0": (32, _symmetric(5)),
    "Q5_1": (32, _with_minimum(5)),
    "Q8_0": (32, _symmetric(8)),
    "Q4_K": (256, _superblock(4)),
    "Q5_K": (256, _superblock(5)),
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
    size, block_of = _BLOCKS[kind]
    made = [block_of(block) for block in weight.astype(np.float32).reshape(-1, size)]
    numbers = np.concatenate([numbers.reshape(-1) for _, numbers in made])
    return Stored(b"".join(data.tobytes() for data, _ in made), numbers.reshape(weight.shape).astype(np.float32))
