"""The step that all attention kernels share: one tile of keys and values joins a softmax computed so far (on line)."""

from __future__ import annotations

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)
"""Score of a key that a row does not attend to. Finite: the difference of two infinite scores is no number."""


@triton.jit
def product(a, b, UPCAST: tl.constexpr, FLOAT32: tl.constexpr = "tf32x3"):
    """a @ b with sums in float32. Of float32, three products of TF32 parts, which lose next to nothing of it."""
    if UPCAST:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=FLOAT32)


@triton.jit
def no_keys(ROWS: tl.constexpr, DIM: tl.constexpr):
    """Largest score, sum of weights and weighted sum of values [ROWS, DIM] before the first key."""
    return tl.full([ROWS], HIDDEN, tl.float32), tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)


@triton.jit
def attend_tile(
    q, keys, values, visible, largest, weight, total, scale, soft_cap, SOFT_CAP: tl.constexpr, UPCAST: tl.constexpr
):
    """``no_keys`` or a former result, after one more tile. All of it in powers of two.

    q: [rows, dim]. keys: [dim, tile], values: [tile, dim], finite where no row sees them. visible: [rows, tile].
    scale, soft_cap: times log2(e). A tile of which a row sees nothing leaves the row's bits as they are.
    """
    if q.dtype == tl.float32 and q.shape[1] > 128:
        # Tensor cores need a warp's 16 queries in registers, which do not hold both parts of 256 numbers.
        scores = product(q, keys.to(q.dtype), UPCAST, "ieee") * scale
    else:
        scores = product(q, keys.to(q.dtype), UPCAST) * scale
    if SOFT_CAP:  # the hyperbolic tangent, which the interpreter lacks
        scores = soft_cap * (1.0 - 2.0 / (tl.exp2(scores / soft_cap * 2.8853900817779268) + 1.0))
    scores = tl.where(visible, scores, HIDDEN)
    now = tl.maximum(largest, tl.max(scores, 1))
    weights = tl.where(visible, tl.exp2(scores - now[:, None]), 0.0)
    shrinks = tl.exp2(largest - now)
    total = total * shrinks[:, None] + product(weights.to(q.dtype), values.to(q.dtype), UPCAST)
    return now, weight * shrinks + tl.sum(weights, 1), total


@triton.jit
def mean(weight, total):
    """The result of attention; zeros for a row without keys."""
    return total / tl.maximum(weight, 1e-30)[:, None]
