"""Random numbers of tokens: the same integers everywhere, evenly spread and independent; draws follow the weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmserve.model_backend.platforms.gumbel import draw, exponential, random_bits
from mmserve.model_backend.worker.sampling.counter_random import random_key

WRITTEN_DOWN = [1245879911, 2035196980, 1783923852, 828542587]


def keys(seeds: range, positions: range = range(1)) -> torch.Tensor:
    """[seeds * positions, 2]"""
    made = [random_key(seed, position) for seed in seeds for position in positions]
    return torch.tensor([(key & 0xFFFFFFFF, key >> 32) for key in made])


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_bits_are_those_of_the_definition() -> None:
    """In plain Python, and as numbers written down: other devices and languages must find them too."""

    def bits(low: int, high: int, token: int) -> int:
        x = (token * 0x9E3779B1 + low) % 2**32
        x = (x ^ x >> 16) * 0x7FEB352D % 2**32
        x = ((x ^ x >> 15) + high) * 0x846CA68B % 2**32
        return (x ^ x >> 16) >> 1

    made = keys(range(-2, 3), range(3))
    found = random_bits(made, 40)
    assert found.tolist() == [[bits(low, high, token) for token in range(40)] for low, high in made.tolist()]
    assert random_bits(torch.tensor([[0xFFFFFFFF, 0x12345678]]), 4).tolist() == [WRITTEN_DOWN]


def test_the_exponential_is_exact_to_a_few_parts_in_ten_million() -> None:
    edges = [0, 1, 2, 3, 100, 2**24 + 1, 2**29 - 1, 2**29, 2**29 + 1, 2**30, 2**31 - 2**24, 2**31 - 2, 2**31 - 1]
    bits = torch.cat([torch.tensor(edges), random_bits(keys(range(1)), 100_000)[0]])
    u = (bits.double() + 0.5) * 2.0**-31
    found = exponential(bits).double()
    expected = -torch.log1p(-u) / np.log(2)
    assert ((found - expected).abs() / expected).max() < 4e-7
    assert found.min() > 0
    assert found.max() < 33


@pytest.mark.parametrize("over", ["tokens", "positions", "seeds"])
def test_bits_are_uniform(over: str) -> None:
    made = {
        "tokens": lambda: random_bits(keys(range(1)), 64_000)[0],
        "positions": lambda: random_bits(keys(range(1), range(8000)), 8).flatten(),
        "seeds": lambda: random_bits(keys(range(8000)), 8).flatten(),
    }[over]()
    for shift in (0, 12, 25):
        counts = (made >> shift & 63).bincount(minlength=64)
        assert chi_square(counts, torch.full((64,), 1000.0)) < 119  # one in 25,000 at 63 degrees of freedom


@pytest.mark.parametrize(("row", "column"), [(0, 1), (1, 0), (1, 1), (3, 7)])
def test_bits_of_neighbours_are_independent(row: int, column: int) -> None:
    """Of tokens and of positions, by the pairs of their upper bits."""
    upper = random_bits(keys(range(2), range(400)), 80) >> 28
    pairs = upper[: len(upper) - row, : 80 - column] * 8 + upper[row:, column:]
    counts = pairs.flatten().bincount(minlength=64)
    assert chi_square(counts, torch.full((64,), pairs.numel() / 64)) < 119


@pytest.mark.parametrize("over", ["seeds", "positions"])
def test_draws_follow_the_weights(over: str) -> None:
    weights = torch.tensor([2.0**42, 3e12, 1e12, 0.0, 5e11, 2e11, 1e11, 4e10])
    count = 40_000
    made = keys(range(count)) if over == "seeds" else keys(range(5, 6), range(count))
    found = draw(weights.expand(count, -1), made).bincount(minlength=8)
    assert found[3] == 0
    likely = weights > 0
    expected = weights[likely].double() / weights.double().sum() * count
    assert chi_square(found[likely], expected) < 27.9  # one in 10,000 at 6 degrees of freedom


def test_draws_of_neighbouring_positions_are_independent() -> None:
    tokens = draw(torch.ones(20_000, 5), keys(range(1), range(20_000)))
    counts = (tokens[:-1] * 5 + tokens[1:]).bincount(minlength=25)
    assert chi_square(counts, torch.full((25,), 19_999 / 25)) < 58  # one in 10,000 at 24 degrees of freedom


def test_equally_good_tokens_go_to_the_first() -> None:
    weights = torch.tensor([[0.0, 0.0, 0.0]])
    assert draw(weights, keys(range(1))).tolist() == [0]


def test_noise_in_the_logits_changes_few_tokens() -> None:
    """As that of bfloat16 does. An inverse of the cumulative distribution would change nearly half of them."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1000, 4000, generator=generator)
    noisy = logits + 0.01 * torch.randn(1000, 4000, generator=generator)
    made = keys(range(1), range(1000))
    before, after = (draw(each.exp() * 2.0**30, made) for each in (logits, noisy))
    assert 0 < (before != after).sum() < 20
