"""The C++ kernels as functions of torch tensors: float32 on a CPU, contiguous unless said otherwise.

``usable`` says whether a tensor may be given to them; whoever is told no computes with torch. Knows no layer.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from mmserve.model_backend.platforms.cpu import quantization
from mmserve.model_backend.platforms.cpu.build import loaded

PANEL = 16
"""Rows of a weight matrix that lie side by side in memory; the kernels' own number, as are the next two."""
BLOCK_TOKENS = 16
MAX_TILE_ROWS = 48
_TOLERANCE = 1e-5
_ROUNDED_TOLERANCE = 1e-4
"""Relative to the largest result; for quantized weights, whose inputs become whole numbers of 16 bits."""
_kept: dict[str, object] = {}
"""What the kernels have the address of."""
logger = logging.getLogger(__name__)


def usable(x: torch.Tensor) -> bool:
    """Is this a tensor for the kernels, and are there any?"""
    return x.dtype is torch.float32 and x.is_cpu and _kernels() is not None


def set_threads(count: int) -> None:
    """At least so many threads for what comes; the caller's counts as one."""
    if (kernels := _kernels()) is not None:
        kernels.mm_set_threads(count)


def leave(taken: ctypes.Array[ctypes.c_int32], *, among: int = 1, least: int = 1) -> None:
    """From now on fewer threads compute, but at least so many: fewer by a part, one of ``among``, of what the numbers
    are together at that moment."""
    if (kernels := _kernels()) is not None:
        _kept["taken"] = taken
        kernels.mm_leave(ctypes.addressof(taken), len(taken), among, least)


def to_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [out / 16, in, 16], with out a multiple of 16; bfloat16 when that loses nothing, then each of the
    first eight outputs beside its counterpart of the last eight, as the kernels widen them together."""
    short = weight.bfloat16()
    if torch.equal(short.to(weight.dtype), weight):
        return short.view(-1, 2, PANEL // 2, weight.shape[1]).permute(0, 3, 2, 1).reshape(-1, weight.shape[1], PANEL)
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def linear(
    x: torch.Tensor,
    panels: torch.Tensor,
    bias: torch.Tensor | None,
    onto: torch.Tensor | None = None,
) -> torch.Tensor:
    """[..., in] -> [..., out], or added to ``onto`` in place. The same for a row whatever the others are.

    ``panels``: of ``to_panels`` or of native/quantized.py.
    """
    x, out_size = x.contiguous(), panels.shape[0] * PANEL
    out = torch.empty(*x.shape[:-1], out_size) if onto is None else onto
    _get().mm_linear(
        x.data_ptr(),
        panels.data_ptr(),
        stored_as(panels),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        x.numel() // x.shape[-1],
        x.shape[-1],
        out_size,
        onto is not None,
    )
    return out


def rows_of(panels: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """int64 [T] -> those rows of the matrix [out, in], float32 [T, in]. Not for int4."""
    indices, size = indices.contiguous(), in_size(panels)
    out = torch.empty(len(indices), size)
    _get().mm_rows(panels.data_ptr(), stored_as(panels), indices.data_ptr(), out.data_ptr(), *out.shape)
    return out


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[T, size], size a multiple of 8."""
    x = x.contiguous()
    out = torch.empty_like(x)
    _get().mm_rms_norm(x.data_ptr(), weight.data_ptr(), eps, out.data_ptr(), *x.shape)
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """[..., size], size a multiple of 8."""
    x = x.contiguous()
    out = torch.empty_like(x)
    rows = x.numel() // x.shape[-1]
    _get().mm_layer_norm(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), eps, out.data_ptr(), rows, x.shape[-1])
    return out


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """[T, heads, dim] in place, rows any distance apart; cos and sin [T, dim / 2]."""
    _get().mm_rotate(x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), *x.shape)


def silu_gate(x: torch.Tensor) -> torch.Tensor:
    """[T, 2 * size], gate before up -> silu(gate) * up [T, size], size a multiple of 8."""
    rows, width = x.shape
    out = torch.empty(rows, width // 2)
    _get().mm_silu_gate(x.data_ptr(), out.data_ptr(), rows, width // 2)
    return out


def quick_gelu_(x: torch.Tensor) -> torch.Tensor:
    """[..., size] in place, size a multiple of 8: x sigmoid(1.702 x)."""
    _get().mm_quick_gelu(x.data_ptr(), x.numel() // x.shape[-1], x.shape[-1])
    return x


@dataclass(frozen=True)
class Tiles:
    """Rows of a step in pieces: int64 [n, 4] of first row, rows, position of the first, row of ``tables``.

    ``tables``: int64 [slots, blocks], ``kv_slots``: int64 [T].
    """

    tiles: torch.Tensor
    tables: torch.Tensor
    kv_slots: torch.Tensor


def attention(q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, layout: Tiles) -> torch.Tensor:
    """Keep K and V, then attend: see ``attention.interface.Attention``. q and kv have rows equally far apart."""
    rows, heads, dim = q.shape
    out = torch.empty(rows, heads, dim)
    _get().mm_attention(
        q.data_ptr(),
        kv.data_ptr(),
        layout.kv_slots.data_ptr(),
        layer_kv.data_ptr(),
        layout.tables.data_ptr(),
        layout.tiles.data_ptr(),
        out.data_ptr(),
        rows,
        len(layout.tiles),
        q.stride(0),
        layout.tables.shape[1],
        heads,
        kv.shape[2],
        dim,
    )
    return out


def encoder_attention(qkv: torch.Tensor, heads: int) -> torch.Tensor:
    """[sequences, tokens, 3 * heads * dim] -> [sequences, tokens, heads * dim], dim a multiple of 16: every token sees
    all of its sequence."""
    sequences, tokens, width = qkv.shape
    out = torch.empty(sequences, tokens, width // 3)
    _get().mm_encoder_attention(qkv.data_ptr(), out.data_ptr(), sequences, tokens, heads, width // 3 // heads)
    return out


def decode(layers: ctypes.Array[Any], shape: ctypes.Structure, step: ctypes.Structure) -> None:
    """See native/decoder.py, which knows what is in them."""
    _get().mm_decoder(layers, ctypes.byref(shape), ctypes.byref(step))


def in_size(panels: torch.Tensor) -> int:
    """Columns of the matrix that the panels stand for."""
    return panels.shape[1] * (quantization.GROUP if panels.dtype is torch.uint8 else 1)


def stored_as(panels: torch.Tensor) -> int:
    """The kernels' number for how weights are stored."""
    if panels.dtype is torch.uint8:
        return 2 if panels.shape[-1] == quantization.INT8_NBYTES else 3
    return 1 if panels.dtype is torch.bfloat16 else 0


def _get() -> ctypes.CDLL:
    kernels = _kernels()
    assert kernels is not None, "asked for without usable()"
    return kernels


@cache
def _kernels() -> ctypes.CDLL | None:
    """The kernels if they compute what torch computes."""
    kernels = loaded()
    if kernels is None or _is_right(kernels):
        return kernels
    logger.warning("the C++ kernels compute wrong numbers on this machine: torch computes alone (slower)")
    return None


def _is_right(kernels: ctypes.CDLL) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(*shape, generator=generator) for shape in ((80, 64), (20, 64), (80,)))
    floats, int8 = weight[:, :40].contiguous(), quantization.to_int8(weight)
    short, meant = floats.bfloat16().float(), quantization.int8_rows(int8, torch.arange(len(weight)))
    return (
        _multiplies(kernels, x[:, :40], to_panels(floats), bias, floats)
        and _multiplies(kernels, x[:, :40], to_panels(short), bias, short)
        and _multiplies(kernels, x, int8, bias, meant, _ROUNDED_TOLERANCE)
    )


def _multiplies(
    kernels: ctypes.CDLL,
    x: torch.Tensor,
    panels: torch.Tensor,
    bias: torch.Tensor,
    meant: torch.Tensor,
    tolerance: float = _TOLERANCE,
) -> bool:
    """Is x times the panels what it is times ``meant``, which they stand for?"""
    expected = torch.nn.functional.linear(x, meant, bias)
    for rows in (1, 9, len(x)):
        some, out = x[:rows].contiguous(), torch.empty(rows, len(bias))
        arguments = (some.data_ptr(), panels.data_ptr(), stored_as(panels), bias.data_ptr(), out.data_ptr())
        kernels.mm_linear(*arguments, *some.shape, len(bias), 0)
        if not torch.allclose(out, expected[:rows], rtol=tolerance, atol=tolerance * float(expected.abs().max())):
            return False
    return True
