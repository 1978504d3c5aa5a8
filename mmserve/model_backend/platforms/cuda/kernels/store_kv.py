"""Writes the K and V of a step's tokens into the paged KV cache."""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.record import SLOTS, section


@triton.jit
def store_kv(kv, record, layer_kv, stride_kv, WIDTH: tl.constexpr, PADDED_WIDTH: tl.constexpr, LARGEST: tl.constexpr):
    """One program a row. kv: rows of WIDTH numbers (K and V of all heads), ``stride_kv`` apart. layer_kv: rows
    of WIDTH numbers; SLOTS says which of them each row is written to.
    LARGEST: of the numbers that the cache can hold, or None, if that is all of them."""
    slots, _ = section(record, SLOTS)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    at = tl.arange(0, PADDED_WIDTH)
    values = tl.load(kv + row * stride_kv + at, mask=at < WIDTH, other=0.0)
    if LARGEST is not None:
        values = tl.clamp(values.to(tl.float32), -LARGEST, LARGEST)
    tl.store(layer_kv + slot * WIDTH + at, values.to(layer_kv.dtype.element_ty), mask=at < WIDTH)
