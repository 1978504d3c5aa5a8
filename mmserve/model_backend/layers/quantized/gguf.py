"""The blocks in which a GGUF file stores a row of a matrix, taken apart into codes and the bytes of scales.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from mmserve.checkpoint.gguf.tensor_types import QUANTIZED

_SUPERBLOCK = 256
_GROUP = 32


class Blocks(NamedTuple):
    """Rows of one format."""

    codes: torch.Tensor
    """uint8 [rows, in]."""
    bits: int
    """Of a code."""
    scales: tuple[torch.Tensor, ...]
    """uint8 [rows, blocks, n, bytes] each: numbers of a block, such as its scale and its minimum, or those of its
    parts. Halves have two bytes."""
    halves: tuple[torch.Tensor, ...]
    """float16 [rows, blocks] each: those among the scales."""

    @property
    def is_finite(self) -> bool:
        return all(bool(each.isfinite().all()) for each in self.halves)


def blocks(name: str, rows: torch.Tensor) -> Blocks:
    """``rows``: uint8 [rows, bytes] of the format ``name``."""
    return _READERS[name](rows.view(len(rows), -1, QUANTIZED[name].nbytes))


def _of_32(stored: torch.Tensor, bits: int, *, minimum: bool) -> Blocks:
    """A scale and perhaps a minimum, the fifth bits of all codes, and their lower halves.

    Those of input i and i + 16 share a byte."""
    scales, rest = _halves(stored, 2 if minimum else 1)
    if bits == 8:
        return _made(rest ^ 128, 8, scales)  # plus 128
    fifths, low = torch.split(rest, [4 * (bits - 4), _GROUP // 2], dim=-1)
    codes = torch.cat((low & 15, low >> 4), dim=-1)
    if bits == 5:
        codes |= _bits(fifths, 1).flatten(-2) << 4
    return _made(codes, bits, scales)


def _of_256(stored: torch.Tensor, bits: int) -> Blocks:
    """Q4_K and Q5_K: two halves, 8 scales and 8 minima of 6 bits, fifth bits, and lower halves of 64 inputs in 32
    bytes."""
    halves, rest = _halves(stored, 2)
    packed, fifths, low = torch.split(rest, [12, _GROUP * (bits - 4), _SUPERBLOCK // 2], dim=-1)
    low = torch.unflatten(low, -1, (-1, _GROUP))
    codes = torch.stack((low & 15, low >> 4), dim=-2).flatten(-3, -2)  # [rows, blocks, 8, 32]
    if bits == 5:
        codes |= _bits(fifths, 1).transpose(-2, -1) << 4
    first, second, upper = torch.split(packed, 4, dim=-1)
    scales = torch.cat((first & 63, upper & 15 | first >> 6 << 4), dim=-1)
    minima = torch.cat((second & 63, upper >> 4 | second >> 6 << 4), dim=-1)
    return _made(codes.flatten(-2), bits, halves, scales[..., None], minima[..., None])


def _q6_k(stored: torch.Tensor) -> Blocks:
    """Lower halves, two upper bits, 16 scales with a sign, and a half that they are multiplied with."""
    low, high, scales, unit = torch.split(stored, [128, 64, 16, 2], dim=-1)
    low, high = torch.unflatten(low, -1, (2, 2, _GROUP)), torch.unflatten(high, -1, (2, _GROUP))
    lower = torch.stack((low & 15, low >> 4), dim=-3).flatten(-3, -2)  # [rows, blocks, 2, 4, 32]
    codes = lower | _bits(high, 2).transpose(-2, -1) << 4
    halves, _ = _halves(unit, 1)
    return _made(codes.flatten(-3), 6, halves, scales[..., None])


def _bits(stored: torch.Tensor, together: int) -> torch.Tensor:
    """uint8 [..., n] -> [..., n, 8 / together]: each byte's bits, ``together`` at a time, the lowest first."""
    shifts = torch.arange(0, 8, together, dtype=torch.uint8)
    return stored[..., None] >> shifts & (1 << together) - 1


def _halves(stored: torch.Tensor, count: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The first ``count`` numbers of 2 bytes, uint8 [rows, blocks, 1, 2] each, and what follows."""
    first, rest = torch.split(stored, [2 * count, stored.shape[-1] - 2 * count], dim=-1)
    return [each[..., None, :] for each in torch.split(first, 2, dim=-1)], rest


def _made(codes: torch.Tensor, bits: int, halves: list[torch.Tensor], *others: torch.Tensor) -> Blocks:
    numbers = tuple(each.contiguous().view(torch.float16).flatten(1) for each in halves)
    return Blocks(codes.flatten(1), bits, (*halves, *others), numbers)


_READERS: dict[str, Callable[[torch.Tensor], Blocks]] = {
    "Q4_0": lambda stored: _of_32(stored, 4, minimum=False),
    "Q4_1": lambda stored: _of_32(stored, 4, minimum=True),
    "Q5_0": lambda stored: _of_32(stored, 5, minimum=False),
    "Q5_1": lambda stored: _of_32(stored, 5, minimum=True),
    "Q8_0": lambda stored: _of_32(stored, 8, minimum=False),
    "Q4_K": lambda stored: _of_256(stored, 4),
    "Q5_K": lambda stored: _of_256(stored, 5),
    "Q6_K": _q6_k,
}
