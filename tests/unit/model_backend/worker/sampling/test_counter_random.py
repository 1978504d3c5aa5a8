"""Keys of draws are pure functions of seed and position, and evenly spread."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.model_backend.worker.sampling.counter_random import random_key

SEEDS = st.integers(-(2**63), 2**64 - 1)
POSITIONS = st.integers(0, 2**40)


@given(SEEDS, POSITIONS)
def test_a_key_is_a_pure_function(seed: int, position: int) -> None:
    first = random_key(seed, position)
    assert 0 <= first < 2**64
    assert random_key(seed, position + 1) != first
    assert random_key(seed, position) == first == random_key(seed % 2**64, position)


def test_the_outputs_are_those_of_splitmix64() -> None:
    """Seed 0: reference outputs of SplitMix64 that starts at 0, whose finaliser maps 0 to 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [random_key(0, position) for position in range(3)] == expected


@pytest.mark.parametrize("shift", [0, 60])
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_the_bits_of_keys_are_uniform(over: str, shift: int) -> None:
    keys = [random_key(3, number) if over == "positions" else random_key(number, 11) for number in range(4000)]
    counts = Counter(key >> shift & 15 for key in keys)
    assert len(counts) == 16
    assert min(counts.values()) > 190
    assert max(counts.values()) < 310
