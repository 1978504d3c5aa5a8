"""The kernels choose the tokens of the reference: any parameters, shapes, ties, banned tokens and wrong numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling
from mmserve.model_backend.platforms.sampling import NO_TOKEN_ALLOWED, NOT_FINITE, Draw, TorchSampling
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random

pytestmark = needs_compiler

GREEDY = Draw(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, key=0)
a_draw = st.builds(
    Draw,
    temperature=st.sampled_from([0.0, 1e-5, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([-1, 0, 1, 5, 70, 1500, 10_000]),
    top_p=st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 1e-9, 1e-4, 0.05, 1.0]),
    key=st.integers(0, 2**64 - 1),
)


def assert_equal_tokens(logits: torch.Tensor, draws: list[Draw], *, may_ban: bool = False) -> None:
    before = logits.clone()
    found = KernelSampling(kernels()).choose(logits, draws, may_ban=may_ban)
    assert torch.equal(found, TorchSampling().choose(before, draws, may_ban=may_ban))
    assert torch.equal(logits, before)


@pytest.mark.parametrize(("rows", "vocab"), [(1, 1), (3, 31), (4, 32), (5, 100), (40, 3001)])
def test_kernels_ban_the_tokens_of_the_reference(rows: int, vocab: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    allowed = torch.randint(-(1 << 31), 1 << 31, (rows, -(-vocab // 32)), generator=generator).int()
    allowed[rows // 2] = 0
    allowed[0, ::2] = -1
    order = torch.randperm(rows + 2, generator=generator)[:rows].tolist()
    found = random(rows + 2, vocab)
    expected = found.clone()
    KernelSampling(kernels()).ban(found, order, allowed)
    TorchSampling().ban(expected, order, allowed)
    assert torch.equal(found, expected)


@given(
    draws=st.lists(a_draw, min_size=1, max_size=5),
    vocab=st.sampled_from([1, 7, 600, 1024, 3001]),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]),
    step=st.sampled_from([0.0, 0.25]),
    noise=st.integers(0, 2**31),
)
@settings(max_examples=80)
def test_kernels_choose_the_tokens_of_the_reference(
    draws: list[Draw], vocab: int, spread: float, step: float, noise: int
) -> None:
    logits = spread * random(len(draws), vocab, seed=noise)
    if step:  # coarse values, as bfloat16 gives them: many ties
        logits = (logits / step).round() * step
    assert_equal_tokens(logits, draws)


def test_peaked_rows_of_a_large_vocabulary() -> None:
    logits = -1.5 * torch.arange(1, 50_001).float().log()[torch.randperm(50_000)].repeat(6, 1) + random(6, 50_000)
    free = Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, key=1)
    cuts = [free, free._replace(top_p=0.9), free._replace(top_k=50), free._replace(min_p=0.01)]
    assert_equal_tokens(logits, [*cuts, free._replace(top_p=0.9999), free._replace(top_k=20_000, top_p=0.5)])


_LARGE = 20_011
"""Tokens of a row of which a sample is taken."""


def _one_heavy_token(noise: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(noise.shape[1]) == 7000, 12.0, 0.1 * noise)


def _few_allowed(noise: torch.Tensor) -> torch.Tensor:
    return noise.masked_fill(noise < 1.5, -math.inf)


_SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda noise: 0.01 * noise,
    "normal": lambda noise: noise,
    "wide": lambda noise: 5 * noise,
    "peaked": lambda noise: noise - 1.5 * noise.argsort().argsort().flip(1).add(1).log(),
    "ties": lambda noise: (4 * noise).round() / 4,
    "equal": lambda noise: 0 * noise,
    "two values": lambda noise: 3 * (noise > 0).float(),
    "ramp": lambda noise: 5 * noise.sort().values,
    "one heavy token": _one_heavy_token,
    "half of the row": lambda noise: noise - 6 * (torch.arange(noise.shape[1]) % 2000 < 1000),
    "few allowed": _few_allowed,
}
"""Kinds of rows, from normal random numbers."""


@pytest.mark.parametrize("shape", _SHAPES)
@given(draws=st.lists(a_draw, min_size=6, max_size=6), noise=st.integers(0, 2**31))
@settings(max_examples=6)
def test_large_rows_of_every_kind(shape: str, draws: list[Draw], noise: int) -> None:
    assert_equal_tokens(_SHAPES[shape](random(len(draws), _LARGE, seed=noise)), draws, may_ban=True)


@pytest.mark.parametrize("shape", _SHAPES)
def test_top_p_of_large_rows(shape: str) -> None:
    logits = _SHAPES[shape](random(24, _LARGE, seed=1))
    free = Draw(temperature=0.8, top_k=0, top_p=0.9, min_p=0.0, key=0)
    cuts = [free._replace(top_p=top_p) for top_p in (1e-9, 0.03, 0.5, 0.9, 0.99, math.nextafter(1, 0))]
    cuts += [free._replace(min_p=min_p) for min_p in (1e-6, 0.9)]
    assert_equal_tokens(
        logits, [cut._replace(key=key) for cut in cuts for key in (0, 2**63 + 11, 2**64 - 1)], may_ban=True
    )


@pytest.mark.parametrize("higher", [-2.0, -0.3, 0.3, 2.0])
def test_top_p_where_a_sample_of_the_row_misleads(higher: float) -> None:
    """Every fourth line of 16 logits differs from the others; the sample is one of four lines."""
    logits = 0.01 * random(40, _LARGE)
    for first in range(4):
        differ = torch.arange(_LARGE) // 16 % 4 == first
        logits[first * 10 : first * 10 + 10] += higher * differ
    free = Draw(temperature=1.0, top_k=0, top_p=0.0, min_p=0.0, key=1)
    assert_equal_tokens(logits, [free._replace(top_p=top_p / 10 + 0.05) for _ in range(4) for top_p in range(10)])


def test_rows_may_be_part_of_wider_ones() -> None:
    draw = Draw(temperature=1.0, top_k=0, top_p=0.9, min_p=0.0, key=1)
    assert_equal_tokens(random(9, 130)[:, :101], [draw, GREEDY, draw] * 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_wrong_number_fails_only_its_row(bad: float) -> None:
    logits = random(3, 50)
    logits[1, 49] = bad
    sampling, draws = KernelSampling(kernels()), [GREEDY, GREEDY._replace(temperature=1.0), GREEDY]
    assert sampling.finite(logits).tolist() == [True, False, True]
    chosen = sampling.choose(logits, draws, may_ban=False).tolist()
    assert chosen == [int(logits[0].argmax()), NOT_FINITE, int(logits[2].argmax())]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_tokens_are_never_chosen(temperature: float) -> None:
    logits = random(3, 50)
    logits[0, 1:] = logits[1] = -math.inf
    draws = [GREEDY._replace(temperature=temperature, top_k=3, key=1)] * 3
    assert_equal_tokens(logits, draws, may_ban=True)
    assert KernelSampling(kernels()).choose(logits, draws, may_ban=True).tolist()[:2] == [0, NO_TOKEN_ALLOWED]


@given(st.lists(a_draw, min_size=1, max_size=5), st.sampled_from([1, 3, 50, 900]), st.integers(0, 2**31))
@settings(max_examples=40)
def test_rows_with_few_allowed_tokens(draws: list[Draw], num_allowed: int, noise: int) -> None:
    logits = 3 * random(len(draws), 1024, seed=noise)
    order = torch.randperm(1024, generator=torch.manual_seed(noise))
    logits[:, order[num_allowed:]] = -math.inf
    assert_equal_tokens(logits, draws, may_ban=True)
    assert set(KernelSampling(kernels()).choose(logits, draws, may_ban=True).tolist()) <= set(
        order[:num_allowed].tolist()
    )


def test_the_platform_samples_with_its_kernels() -> None:
    assert isinstance(CpuPlatform(torch.float32).sampling(), KernelSampling)
    assert isinstance(CpuPlatform(torch.bfloat16).sampling(), KernelSampling)
    assert isinstance(CpuPlatform(torch.float16).sampling(), TorchSampling)
