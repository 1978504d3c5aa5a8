"""The attention kernels compile for a GPU and fit it: registers, shared memory, products by the fast instructions.

What the compiler says of a Hopper GPU is what the sizes in ``attention/tiling.py`` were chosen by. No GPU is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from mmserve.model_backend.platforms.cuda.attention.tiling import tiling_of
from tests.unit.model_backend.platforms.cuda import compiled
from tests.unit.model_backend.platforms.cuda.compiled import DRAW, ENCODER, EXPERTS, RESIZE, ROWS, SHARED_BYTES, Case

HOPPER = 90
LLAMA = Case("bfloat16", 4, 8, 128)
WIDE = Case("bfloat16", 2, 4, 256, 1024, True, 50.0)
ROW_KERNELS = ("norm_rows", "add_normed_rows", "rotate_rows", "gate_rows", "coded_product")
FOR_HOPPER: list[list[Any]] = [
    [HOPPER, *about]
    for about in (
        *(LLAMA, WIDE, LLAMA._replace(kv_dtype="float8_e4m3fn"), (ENCODER, 80, "bfloat16")),
        *(LLAMA._replace(dtype="float32"), WIDE._replace(dtype="float32"), (ENCODER, 80, "float32")),
        *((ROWS, size, "bfloat16") for size in (4096, 16_384)),
        (DRAW,),
        (RESIZE,),
    )
]
OTHERS: dict[str, list[Any]] = {
    "Llama on Ampere": [80, *LLAMA],
    "rows on Ampere": [80, ROWS, 4096, "bfloat16"],
    "wide heads on small Blackwell": [120, *WIDE],
    "rows on small Blackwell": [120, ROWS, 4096, "bfloat16"],
}
"""What is special about them: Ampere has no FP8, a Blackwell GPU for desks two fifths of Hopper's shared memory."""
MIXTURES: list[list[Any]] = [[HOPPER, EXPERTS, 1], [HOPPER, EXPERTS, 1000]]
CASES = [*FOR_HOPPER, *OTHERS.values(), *MIXTURES]


@pytest.fixture(scope="module")
def kernels() -> list[dict[str, dict[str, Any]]]:
    """Of each of ``CASES``, the kernels by name."""
    ran = subprocess.run(
        [sys.executable, "-m", compiled.__name__, *map(json.dumps, CASES)],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [{each["kernel"]: each for each in case} for case in json.loads(ran.stdout)]


def test_for_hopper_nothing_spills_and_tiles_are_read_ahead(kernels: list[dict[str, dict[str, Any]]]) -> None:
    *cases, short_cache, tower, exact, wide_exact, exact_tower, rows, long_rows, draw, resize = kernels[
        : len(FOR_HOPPER)
    ]
    for case in (exact, wide_exact, exact_tower):
        assert not any(kernel["spilled_bytes"] for kernel in case.values())
    assert set(draw) == {"draw_rows", "choose_rows"}
    for kernel in draw.values():
        assert not kernel["spilled_bytes"]
        assert not kernel["fused"]
        assert kernel["divisions"]
    assert set(resize) == {"resample_lines", "resample_columns"}
    assert not any(kernel["spilled_bytes"] or kernel["shared_bytes"] for kernel in resize.values())
    assert set(rows) == {*ROW_KERNELS, "quantize_rows", "quantize_normed_rows", "quantize_gated_rows"}
    assert not any(kernel["spilled_bytes"] for kernel in (*rows.values(), *long_rows.values()))
    for name in ("attend_splits", "prefill_tiles"):
        assert not short_cache[name]["spilled_bytes"]
        assert short_cache[name]["copies_ahead"]
        assert short_cache[name]["shared_bytes"] < 0.7 * cases[0][name]["shared_bytes"]
    assert not tower["encoder_tiles"]["spilled_bytes"]
    assert tower["encoder_tiles"]["wgmma"]
    assert tower["encoder_tiles"]["copies_ahead"]
    for model, case in zip((LLAMA, WIDE), cases, strict=True):
        assert set(case) == {
            *("turn_and_store", "attend_splits", "merge_splits", "merge_rounded_splits", "prefill_tiles")
        }
        for kernel in case.values():
            assert kernel["spilled_bytes"] == 0
            assert kernel["shared_bytes"] <= SHARED_BYTES[HOPPER]
        splits, prefill = case["attend_splits"], case["prefill_tiles"]
        assert prefill["wgmma"]
        for kernel in (splits, prefill):
            assert kernel["copies_ahead"]
            assert kernel["wide_copies"]
            assert not kernel["other_copies"]
        # Together on a processor with 64 Ki registers and 228 KiB, of which each program takes 1 KiB more.
        programs = tiling_of(model.spec, model.torch_dtype, SHARED_BYTES[HOPPER]).split_programs
        assert programs * splits["registers"] * 32 * splits["warps"] <= 1 << 16
        assert programs * (splits["shared_bytes"] + 1024) <= 228 * 1024


@pytest.mark.parametrize("index", range(len(OTHERS)), ids=OTHERS)
def test_for_older_and_smaller_gpus_kernels_fit(kernels: list[dict[str, dict[str, Any]]], index: int) -> None:
    capability, *_ = CASES[len(FOR_HOPPER) + index]
    found = kernels[len(FOR_HOPPER) + index]
    assert len(found) >= 4
    assert ("quantize_rows" in found) == ("norm_rows" in found and capability > 80)
    for kernel in found.values():
        assert not kernel["spilled_bytes"], kernel
        assert kernel["shared_bytes"] <= SHARED_BYTES[capability]
        assert kernel["registers"] * 32 * kernel["warps"] <= 1 << 16


def test_experts_are_read_ahead_and_many_rows_take_the_fast_products(
    kernels: list[dict[str, dict[str, Any]]],
) -> None:
    few, many = kernels[-len(MIXTURES) :]
    for found in (few, many):
        assert set(found) == {"route_rows", "sort_pairs", "multiply_pairs", "add_pairs"}
        assert not any(kernel["spilled_bytes"] for kernel in found.values())
        assert found["multiply_pairs"]["copies_ahead"]
        assert found["multiply_pairs"]["shared_bytes"] <= SHARED_BYTES[120], "one size for all GPUs"
        assert not found["multiply_pairs"]["other_copies"]
    assert many["multiply_pairs"]["wgmma"]
