"""The C++ kernels compute what torch computes, and a row's numbers do not depend on the rows beside it."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.model_backend.attention.interface import AttentionInput
from mmserve.model_backend.attention.paged_cpu import PagedCpuAttention
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.rotary import rotate_
from mmserve.model_backend.platforms.cpu import build, kernels, quantization
from tests.fakes.quantized import meant

# Where there is no compiler mmserve computes with torch, and the parity tests beside this file ask the same answers of
# it. Where there is one, kernels that cannot be built or fail their self-test are failures, not skips.
pytestmark = pytest.mark.skipif(
    build.compiler() is None,
    reason="no C++ compiler on this machine: torch computes, which every other test of the model then asks",
)


@pytest.fixture(autouse=True, scope="module")
def _threads() -> None:
    kernels.set_threads(3)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 13, 100, 700])
def test_a_product(rows: int, short: bool) -> None:
    weight, x, bias, onto = random(208, 90), random(rows, 90, seed=1), random(208, seed=2), random(rows, 208, seed=3)
    if short:
        weight = weight.bfloat16().float()
    panels = kernels.to_panels(weight)
    assert panels.dtype is (torch.bfloat16 if short else torch.float32)
    expected = F.linear(x, weight, bias)
    torch.testing.assert_close(kernels.linear(x, panels, bias), expected, rtol=1e-4, atol=1e-4)
    added = onto.clone()
    assert kernels.linear(x, panels, bias, added) is added
    torch.testing.assert_close(added, onto + expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 40])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantized_product(rows: int, bits: int) -> None:
    weight, x, bias, onto = random(112, 96), random(rows, 96, seed=1), random(112, seed=2), random(rows, 112, seed=3)
    weight[7] = 0
    x[:, :32] *= 1000
    panels = quantization.to_int8(weight) if bits == 8 else quantization.to_int4(weight)
    kept = meant(weight, f"int{bits}")
    step = weight.abs().max() * 2 / (2**bits - 1)
    assert (kept - weight).abs().max() <= step * 0.55
    expected = onto + F.linear(x, kept, bias)
    assert (kernels.linear(x, panels, bias, onto) - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("quantize", [quantization.to_int8, quantization.to_int4])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_what_is_not_finite_does_not_become_a_number(quantize: Callable[..., torch.Tensor], wrong: float) -> None:
    x = random(2, 64)
    x[1, 40] = wrong
    found = kernels.linear(x, quantize(random(16, 64, seed=1)), None)
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


@pytest.mark.parametrize("rows", [2, 3, 6, 7, 300])
@pytest.mark.parametrize("pack", [kernels.to_panels, quantization.to_int8, quantization.to_int4])
def test_a_row_alone_and_among_others(rows: int, pack: Callable[..., torch.Tensor]) -> None:
    panels, x = pack(random(112, 96).bfloat16().float()), random(rows, 96, seed=1)
    together = kernels.linear(x, panels, None)
    assert all(
        torch.equal(kernels.linear(x[i : i + 1], panels, None)[0], together[i]) for i in (0, rows // 2, rows - 1)
    )


@pytest.mark.parametrize("form", ["float32", "bfloat16", "int8"])
def test_rows_that_are_looked_up(form: str) -> None:
    weight, indices = random(64, 96), torch.tensor([63, 0, 17, 17, 5] * 90)
    if form == "bfloat16":
        weight = weight.bfloat16().float()
    panels = quantization.to_int8(weight) if form == "int8" else kernels.to_panels(weight)
    expected = meant(weight, form) if form == "int8" else weight
    assert torch.equal(kernels.rows_of(panels, indices), expected[indices])
    assert kernels.rows_of(panels, indices[:0]).shape == (0, 96)


def test_small_operations() -> None:
    x = random(70, 128)
    norm = RmsNorm(128, 1e-5, like=torch.empty(0))
    norm.weight.copy_(random(128, seed=1))
    torch.testing.assert_close(norm(x), F.rms_norm(x, (128,), norm.weight, 1e-5))
    wild = torch.cat((x, torch.full((1, 128), -200.0), torch.full((1, 128), 200.0)))
    gate, up = wild.chunk(2, dim=-1)
    torch.testing.assert_close(kernels.silu_gate(wild), F.silu(gate) * up)
    torch.testing.assert_close(kernels.quick_gelu_(wild.clone()), wild * torch.sigmoid(1.702 * wild))


def test_rotation_of_some_heads() -> None:
    heads, angle = random(40, 5, 16), random(40, 8, seed=1)
    found, wanted = heads.clone(), heads.clone().double()
    rotate_(found[:, :3], (angle.cos(), angle.sin()))
    rotate_(wanted[:, :3], (angle.double().cos(), angle.double().sin()))
    torch.testing.assert_close(found, wanted.float())
    assert torch.equal(found[:, 3:], heads[:, 3:])


def rows_of_steps(steps: list[tuple[int, int]]) -> AttentionInput:
    """(start, count) of each sequence; blocks in random order."""
    num_blocks = [-(-(start + count) // KV_BLOCK_TOKENS) for start, count in steps]
    blocks = np.zeros((len(steps), max(num_blocks)), dtype=np.int64)
    order = iter(np.random.default_rng(0).permutation(sum(num_blocks)))
    for slot, count in enumerate(num_blocks):
        blocks[slot, :count] = [next(order) for _ in range(count)]
    slots = np.arange(len(steps))
    starts, counts = (np.array(values) for values in zip(*steps, strict=True))
    positions = np.concatenate([np.arange(start, start + count) for start, count in steps])
    kv_slots = blocks[np.repeat(slots, counts), positions // KV_BLOCK_TOKENS] * KV_BLOCK_TOKENS
    return AttentionInput(slots, starts, counts, blocks, kv_slots + positions % KV_BLOCK_TOKENS, torch.empty(0))


@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize(
    "steps", [[(0, 1)], [(300, 1), (16, 1), (15, 1)], [(0, 100)], [(40, 1), (0, 17), (33, 90)]], ids=str
)
def test_attention(steps: list[tuple[int, int]], group: int) -> None:
    rows = rows_of_steps(steps)
    qkv = random(len(rows.kv_slots), (group + 2) * 2, 32)
    cache = random(int(rows.blocks.max()) + 1, KV_BLOCK_TOKENS, 2, 2, 32, seed=1)
    found, kept = [], []
    for attention in (PagedCpuAttention(group), SdpaAttention()):
        layer_kv, heads = cache.clone(), qkv.clone()
        kv = heads[:, 2 * group :].unflatten(1, (2, 2))
        found.append(attention(heads[:, : 2 * group], kv, layer_kv, attention.prepare(rows)))
        kept.append(layer_kv)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(kept[0], kept[1])


@pytest.mark.parametrize("dim", [16, 48, 64])
@pytest.mark.parametrize("length", [63, 64, 65, 150])
def test_a_token_attends_the_same_in_a_prompt_in_a_chunk_alone_and_beside_others(length: int, dim: int) -> None:
    group, cut = 3, length - 30
    attention = PagedCpuAttention(group)
    qkv = random(length, (group + 2) * 2, dim)
    whole = rows_of_steps([(0, length)])
    cache = torch.zeros(int(whole.blocks.max()) + 1, KV_BLOCK_TOKENS, 2, 2, dim)

    def attend(starts_and_counts: list[tuple[int, int]]) -> torch.Tensor:
        tokens = [token for start, count in starts_and_counts for token in range(start, start + count)]
        alike = rows_of_steps(starts_and_counts)
        rows = replace(
            alike,
            blocks=np.repeat(whole.blocks, len(starts_and_counts), axis=0),
            kv_slots=whole.kv_slots[tokens],
        )
        heads = qkv[tokens]
        kv = heads[:, 2 * group :].unflatten(1, (2, 2))
        return attention(heads[:, : 2 * group], kv, cache, attention.prepare(rows))

    expected = attend([(0, length)])
    assert torch.equal(attend([(cut, 30)]), expected[cut:])
    assert torch.equal(attend([(length - 1, 1)])[0], expected[-1])
    for found in attend([(length - 1, 1)] * 4):
        assert torch.equal(found, expected[-1])


def test_attention_never_looks_beyond_its_own_context() -> None:
    """What other sequences left in the last block, NaN included, changes nothing."""
    rows = rows_of_steps([(20, 1), (5, 20)])
    qkv, attention = random(21, 4, 32), PagedCpuAttention(2)
    clean = random(4, KV_BLOCK_TOKENS, 2, 1, 32, seed=1)
    spoiled = clean.clone()
    spoiled[rows.blocks[0, 1], 5:] = torch.nan
    spoiled[rows.blocks[1, 1], 9:] = torch.nan
    first, second = (
        attention(qkv[:, :2], qkv[:, 2:].unflatten(1, (2, 1)), cache, attention.prepare(rows))
        for cache in (clean, spoiled)
    )
    assert torch.equal(first, second)


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quick = tuple(option.replace("-O3", "-O0") for option in build._OPTIONS)
    monkeypatch.setattr(build, "_OPTIONS", quick)
    build.loaded.cache_clear()
    yield tmp_path
    build.loaded.cache_clear()


def test_with_a_compiler_there_are_some_and_they_pass_their_self_test() -> None:
    assert kernels.usable(torch.empty(0))


def test_without_a_compiler_there_are_none(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build.loaded() is None


def test_built_once(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.loaded() is not None
    build.loaded.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build.loaded() is not None
    assert len(list(fresh_cache.glob("mmserve/*.so"))) == 1


def test_a_home_that_cannot_be_written(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("tmp")
    (fresh_cache / "mmserve").write_text("no directory")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(elsewhere))
    assert build.loaded() is not None
    assert list(elsewhere.glob("mmserve-*/*.so"))


def test_threads_left_to_others_change_no_number() -> None:
    """They come and go while products are computed; nothing is lost with them."""
    weight, x = random(208, 90), random(100, 90, seed=1)
    panels, taken = kernels.to_panels(weight), (ctypes.c_int32 * 2)()
    alone = kernels.linear(x, panels, None)
    kernels.leave(taken)
    try:
        for numbers in ((0, 0), (1, 0), (0, 2), (1, 1), (3, 0), (2, 9), (0, 1), (0, 0)):
            taken[:] = numbers
            assert all(torch.equal(kernels.linear(x, panels, None), alone) for _ in range(50))
    finally:
        kernels.leave((ctypes.c_int32 * 0)())


@pytest.mark.parametrize(
    ("sequences", "tokens", "heads", "dim"), [(1, 1, 2, 16), (2, 65, 4, 48), (3, 257, 6, 64), (1, 48, 1, 32)]
)
def test_attention_of_an_encoder(sequences: int, tokens: int, heads: int, dim: int) -> None:
    qkv = random(sequences, tokens, 3 * heads * dim)
    q, k, v = qkv.view(sequences, tokens, 3, heads, dim).permute(2, 0, 3, 1, 4)
    expected = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(kernels.encoder_attention(qkv, heads), expected, rtol=1e-4, atol=1e-5)


def test_layer_norm() -> None:
    x, weight, bias = random(2, 7, 48) * 3 + 1, random(48, seed=1), random(48, seed=2)
    expected = F.layer_norm(x, (48,), weight, bias, 1e-5)
    torch.testing.assert_close(kernels.layer_norm(x, weight, bias, 1e-5), expected, rtol=1e-5, atol=1e-5)
