"""Floors of the GPU battery, against counts by hand for Llama-3.1-8B at 4.3 TB/s and 780 TFLOP/s."""

from __future__ import annotations

import pytest

from benchmarks.gpu.models.shapes import SHAPES, SMALL
from benchmarks.gpu.rates.floors import Ceilings, decode_s, prefill_operations, prefill_s, tower_operations

CARD = Ceilings(nbytes=4.3e12, operations=780e12)
LLAMA = SHAPES["Llama-3.1-8B"].decoder


def test_weights_and_cache_of_the_8b() -> None:
    of_layer = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14_336
    assert LLAMA.linear_weights == 32 * of_layer
    assert LLAMA.head_weights == 128_256 * 4096
    assert LLAMA.kv_nbytes() == 131_072


@pytest.mark.parametrize(("batch", "tokens_per_s"), [(1, 284), (8, 2139), (64, 11_660), (256, 19_820)])
def test_decode_floors_at_a_context_of_1024(batch: int, tokens_per_s: float) -> None:
    """At 256 the products are bound by operations."""
    assert batch / decode_s(LLAMA, batch, 1024, CARD) == pytest.approx(tokens_per_s, rel=0.002)


@pytest.mark.parametrize(("kv_nbytes", "tokens_per_s"), [(2, 527), (1, 531)])
def test_fp8_weights_and_cache(kv_nbytes: float, tokens_per_s: float) -> None:
    found = 1 / decode_s(LLAMA, 1, 1024, CARD, weight_nbytes=1, kv_nbytes=kv_nbytes)
    assert found == pytest.approx(tokens_per_s, rel=0.002)


def test_prompts_are_bound_by_operations() -> None:
    assert prefill_operations(LLAMA, 1024) == pytest.approx(14.3e12 + 0.27e12, rel=0.005)
    assert prefill_s(LLAMA, 8192, Ceilings(1.0, 788e12)) == pytest.approx(0.167, rel=0.01)


def test_a_tower_without_windows_counts_every_pair_of_patches() -> None:
    shape = SMALL["Qwen2.5-VL-7B"].tower
    patches, hidden = 24, shape.hidden
    linear = 2 * 2 * patches * (4 * hidden**2 + 3 * hidden * shape.inner)
    attention = 2 * 4 * hidden * patches**2  # 24 patches are within one window
    ends = 2 * patches * shape.patch_nums * hidden + 2 * 6 * ((4 * hidden) ** 2 + 4 * hidden * shape.out)
    assert tower_operations(shape, patches) == linear + attention + ends
