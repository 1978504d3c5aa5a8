"""Attention of one step by the C++ kernel, by gathering KV blocks for torch's SDPA, and by FlexAttention.

``short`` is the kernel with K and V in bfloat16, all else in float32; ``rounded`` rounds the other inputs too.

    python -m benchmarks.kernels.attention [--repeats N] [--threads N] [--no-flex] [--no-gather] [--case TEXT]

The shapes of SmolLM2-135M: 30 layers of 9 query and 3 key heads of 64, float32, each layer with a KV cache of its own,
so that keys and values come from memory. All layers one after the other on one thread; CPU time of the calling thread,
which waits for the others without sleeping; the minimum of the repeats. FlexAttention is compiled for each shape (the
table says how long that takes) and gets contiguous keys and values: its figure leaves out the cost of gathering or
paging them.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from benchmarks.load.report import Row, table, write_json
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionInput, AttentionSpec, StepLimits
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.model_backend.platforms.cpu.threads import set_threads

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
SPEC = AttentionSpec(HEADS, KV_HEADS, DIM)
BLOCK_TOKENS = PagedCpuAttention.block_sizes[0]
WARM_UPS = 2


@dataclass(frozen=True)
class Case:
    """``sequences`` sequences, each with ``count`` new tokens after ``start`` computed ones.

    The first ``shared`` tokens of all, a multiple of a block, are in the same blocks.
    """

    name: str
    sequences: int
    start: int
    count: int
    shared: int = 0


CASES = (
    Case("16 decoding, 288 tokens each", 16, 287, 1),
    Case("8 decoding, 1,000 tokens each", 8, 999, 1),
    Case("8 decoding, 1,000 tokens each, 992 shared", 8, 999, 1, 992),
    Case("8 of a prompt behind 992", 1, 992, 8),
    Case("16 decoding, 1,088 tokens each, 1,024 shared", 16, 1087, 1, 1024),
    Case("16 of a prompt behind 1,072", 1, 1072, 16),
    Case("a prompt of 256", 1, 0, 256),
    Case("64 of a prompt behind 448", 1, 448, 64),
    Case("1 decoding, 1,000 tokens", 1, 999, 1),
    Case("1 decoding, 8,192 tokens", 1, 8191, 1),
    Case("8 decoding, 8,192 tokens each", 8, 8191, 1),
    Case("1 decoding, 32,768 tokens", 1, 32767, 1),
    Case("256 of a prompt behind 7,936", 1, 7936, 256),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1, help="of the kernels alone")
    parser.add_argument("--flex", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--gather", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--case", action="append", help="only cases whose name contains this; repeatable")
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if verified_kernels("auto") is None:
        parser.error("there is no C++ compiler for the kernel, nor for FlexAttention: install c++ or g++")
    with torch.inference_mode(), tempfile.TemporaryDirectory() as empty_cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty_cache
        chosen = [case for case in CASES if any(part in case.name for part in options.case or [""])]
        rows = [_measure(case, options) for case in chosen]
    print(table(rows))
    write_json(options.json, rows)


def _measure(case: Case, options: argparse.Namespace) -> Row:
    step = _step(case)
    kernels = verified_kernels("auto")
    assert kernels is not None
    set_threads(kernels, options.threads)
    backends: dict[str, tuple[AttentionBackend[Any], torch.dtype]] = {
        "kernel": (PagedCpuAttention(kernels, SPEC), torch.float32),
        "short": (PagedCpuAttention(kernels, SPEC, torch.bfloat16), torch.bfloat16),
        "rounded": (PagedCpuAttention(kernels, SPEC, torch.bfloat16, rounds=True), torch.bfloat16),
    }
    if options.gather:
        backends["gathered"] = SdpaAttention(SPEC, torch.float32, torch.device("cpu")), torch.float32
    limits = StepLimits(len(step.slot_mapping), case.sequences, step.block_tables.shape[1], BLOCK_TOKENS)
    heads = torch.randn(case.sequences * case.count, HEADS + 2 * KV_HEADS, DIM)
    q, kv = heads[:, :HEADS], heads[:, HEADS:].unflatten(1, (2, KV_HEADS))
    found: Row = {"step": case.name}
    for name, (backend, dtype) in backends.items():
        shape = backend.kv_shape(_num_blocks(case), BLOCK_TOKENS)
        caches = [torch.randn(shape).to(dtype) for _ in range(LAYERS)]
        metadata = backend.builder(limits).build(step)
        found[f"{name}_ms"] = _least_ms(
            lambda cache, b=backend, m=metadata: b.forward(q, kv, cache, m), caches, options.repeats
        )
    if options.flex:
        found |= _flex(case, options.repeats)
    return found


def _flex(case: Case, repeats: int) -> Row:
    length = case.start + case.count
    layers = [torch.randn(2, case.sequences, KV_HEADS, length, DIM) for _ in range(LAYERS)]
    q, mask = torch.randn(case.sequences, HEADS, case.count, DIM), None
    if case.count > 1:
        mask = create_block_mask(
            lambda batch, head, row, key: key <= row + case.start, None, None, case.count, length, device="cpu"
        )
    compiled = torch.compile(flex_attention, dynamic=False)
    started_s = time.perf_counter()
    compiled(q, *layers[0], block_mask=mask, enable_gqa=True)
    compile_s = time.perf_counter() - started_s
    least_ms = _least_ms(lambda kv: compiled(q, *kv, block_mask=mask, enable_gqa=True), layers, repeats)
    return {"flex_ms": least_ms, "flex_compile_s": compile_s}


def _least_ms(attend: Callable[[torch.Tensor], object], caches: Sequence[torch.Tensor], repeats: int) -> float:
    spent_s = []
    for _ in range(WARM_UPS + repeats):
        started_s = time.thread_time()
        for cache in caches:
            attend(cache)
        spent_s.append(time.thread_time() - started_s)
    return min(spent_s[WARM_UPS:]) * 1e3


def _num_blocks(case: Case) -> int:
    return case.sequences * -(-(case.start + case.count) // BLOCK_TOKENS)


def _step(case: Case) -> AttentionInput:
    """The input of one step. Blocks are in random order, as in a server that has run for a while."""
    blocks = np.random.default_rng(0).permutation(_num_blocks(case)).reshape(case.sequences, -1)
    blocks[:, : case.shared // BLOCK_TOKENS] = blocks[0, : case.shared // BLOCK_TOKENS]
    slots = np.arange(case.sequences)
    positions = np.tile(np.arange(case.start, case.start + case.count), case.sequences)
    slot_mapping = blocks[np.repeat(slots, case.count), positions // BLOCK_TOKENS] * BLOCK_TOKENS
    starts, counts = (np.full(case.sequences, value) for value in (case.start, case.count))
    return AttentionInput(slots, starts, counts, blocks, slot_mapping + positions % BLOCK_TOKENS)


if __name__ == "__main__":
    main()
