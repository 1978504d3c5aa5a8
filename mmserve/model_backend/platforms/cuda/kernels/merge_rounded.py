"""The merge of ``paged_splits`` with the rounding to FP8 of all rows of a step, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.paged_splits import merge_head
from mmserve.model_backend.platforms.cuda.kernels.quantize_rows import store_rounded
from mmserve.model_backend.platforms.cuda.kernels.record import section


@triton.jit(do_not_specialize=["num_rows", "stride_group"])
def merge_rounded_splits(
    partial_totals,
    partial_weights,
    record,
    heads_done,
    out,
    numbers,
    scales,
    num_rows,
    stride_group,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
    MERGES: tl.constexpr,
):
    """numbers: [num_rows, HEADS * DIM], zeros in rows behind those of the step. GROUP, scales: see ``store_rounded``.
    The section behind MERGES has the rows that ``out`` has already.

    A long row is merged by many programs, a head each. ``heads_done`` [rows] counts them; the program that is the last
    of a row rounds the row, and sets its count to 0 again.
    """
    merges, num_merges = section(record, MERGES)
    others, num_others = section(record, MERGES + 1)
    size: tl.constexpr = HEADS * DIM
    at = tl.arange(0, PADDED_SIZE)
    num_heads = num_merges * HEADS
    for work in range(tl.program_id(0), num_heads + num_rows - num_merges, tl.num_programs(0)):
        if work < num_heads:
            merge = merges + work // HEADS * 3
            merge_head(partial_totals, partial_weights, merge, work % HEADS, out, HEADS, DIM, PADDED_DIM)
            row = tl.load(merge)
            # All threads have stored the head before it counts: the count is what other programs go by.
            tl.debug_barrier()
            rounds = tl.atomic_add(heads_done + row, 1, sem="acq_rel") == HEADS - 1
            tl.store(heads_done + row, 0, mask=rounds)
        else:
            other = work - num_heads
            row = tl.load(others + other, mask=other < num_others, other=num_merges + other)
            rounds = other >= 0
        if rounds:
            inside = at < tl.where(row < num_merges + num_others, size, 0)
            # Not from this multiprocessor's own cache: other programs have stored the other heads.
            own = out + row.to(tl.int64) * size + at
            values = tl.load(own, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
            store_rounded(values, numbers, scales, row.to(tl.int64), 0, stride_group, size, PADDED_SIZE, GROUP, LARGEST)
