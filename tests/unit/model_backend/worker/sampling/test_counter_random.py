"""Random numbers are pure, uniform, and the same on host and device."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmserve.model_backend.worker.sampling.counter_random import uniform, uniforms_on_device

SEEDS = st.integers(-(2**63), 2**64 - 1)
POSITIONS = st.integers(0, 2**40)


def as_int64(seed: int) -> int:
    """The int64 with the seed's 64 bits."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


@given(st.lists(st.tuples(SEEDS, POSITIONS), min_size=1, max_size=20))
def test_host_and_device_give_the_same_numbers(pairs: list[tuple[int, int]]) -> None:
    seeds, positions = zip(*pairs, strict=True)
    on_host = [uniform(*pair) for pair in pairs]
    on_device = uniforms_on_device(torch.tensor([as_int64(seed) for seed in seeds]), torch.tensor(positions))
    assert on_host == on_device.tolist()
    assert all(0.0 <= value < 1.0 for value in on_host)


@given(SEEDS, POSITIONS)
def test_a_number_is_a_pure_function(seed: int, position: int) -> None:
    first = uniform(seed, position)
    assert uniform(seed, position + 1) != first
    assert uniform(seed, position) == first


def test_the_outputs_are_those_of_splitmix64() -> None:
    """Seed 0: reference outputs of SplitMix64 that starts at 0, whose finaliser maps 0 to 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [uniform(0, position) * 2.0**48 for position in range(3)] == [value >> 16 for value in expected]


@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_numbers_are_uniform(over: str) -> None:
    values = [uniform(3, number) if over == "positions" else uniform(number, 11) for number in range(4000)]
    counts = Counter(int(value * 10) for value in values)
    assert min(counts.values()) > 320
    assert max(counts.values()) < 480
