"""The reference of token sampling draws from the softmax, and its cuts do not depend on the order of sums."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.model_backend.platforms.sampling import UNIT_BITS, Draw, TorchSampling, _weights_
from mmserve.model_backend.platforms.thresholds import kth_largest, nucleus_floor
from mmserve.model_backend.worker.sampling.counter_random import random_key

FREE = Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, key=1)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weights(logits: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    scale = torch.tensor([[FREE._replace(temperature=temperature).scale]])
    return _weights_(logits.clone(), scale)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_weights_are_the_softmax_in_whole_units(temperature: float, spread: float) -> None:
    logits = spread * random(8, 5000) + 20
    found = weights(logits, temperature).double()
    assert torch.equal(found, found.round())
    assert found.amax(dim=-1).tolist() == [2.0**UNIT_BITS] * 8
    expected = torch.softmax(logits.double() / temperature, dim=-1)
    distance = (found / found.sum(dim=-1, keepdim=True) - expected).abs().sum(dim=-1) / 2
    assert distance.max() < 5e-7, "as near as a softmax in float32"


@pytest.mark.parametrize(
    "change",
    [{}, {"temperature": 0.5}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1}, {"top_k": 7, "top_p": 0.9}],
    ids=str,
)
def test_draws_follow_the_softmax_of_what_the_cuts_keep(change: dict[str, float]) -> None:
    logits, count = 1.5 * random(1, 12), 20_000
    draw = FREE._replace(**change)  # type: ignore[arg-type]
    draws = [draw._replace(key=random_key(7, position)) for position in range(count)]
    found = TorchSampling().choose(logits.repeat(count, 1), draws, may_ban=False).bincount(minlength=12)
    kept = kept_by_sorting(logits, draw)[0]
    assert found[~kept].sum() == 0
    expected = torch.softmax(logits[0, kept].double() / draw.temperature, dim=-1) * count
    statistic = float(((found[kept] - expected) ** 2 / expected).sum())
    assert statistic < 35.6  # one in 5,000 at 11 degrees of freedom, less at fewer


def kept_by_sorting(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Bool [R, vocab]: the tokens that top-k, then top-p of these, then min-p keep, with those of equal weight."""
    found = []
    for row in weights(logits, draw.temperature).long():
        order = row.sort(descending=True).values.tolist()
        kept = order[: draw.top_k] if draw.top_k > 0 else order
        kept = [weight for weight in order if weight >= kept[-1]]
        if draw.top_p < 1:
            sums = list(itertools.accumulate(kept))
            needed = max(1, int(sums[-1] * draw.top_p))
            kept = kept[: 1 + next(index for index, reached in enumerate(sums) if reached >= needed)]
        found.append((row >= kept[-1]) & (row > 0) & (row >= draw.min_weight))
    return torch.stack(found)


a_cut = st.builds(
    FREE._replace,
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 39, 40, 100]),
    top_p=st.sampled_from([0.0, 1e-6, 0.3, 0.9, 0.9999, math.nextafter(1, 0), 1.0]),
    min_p=st.sampled_from([0.0, 1e-6, 0.05, 0.5, 1.0]),
)


@given(a_cut, st.sampled_from([0.01, 1.0, 8.0]), st.sampled_from([0.0, 0.5]), st.integers(0, 2**31))
@settings(max_examples=60)
def test_what_is_drawn_is_what_sorting_keeps(draw: Draw, spread: float, step: float, noise: int) -> None:
    """Each token is drawn by some key where few are kept, and no other token by any."""
    logits = spread * random(1, 40, seed=noise)
    if step:  # coarse values: many ties
        logits = (logits / step).round() * step
    count = 64
    draws = [draw._replace(key=random_key(noise, position)) for position in range(count)]
    found = TorchSampling().choose(logits.repeat(count, 1), draws, may_ban=False)
    assert kept_by_sorting(logits, draw)[0][found].all()


@given(
    st.lists(st.sampled_from([0, 1, 1, 2, 5, 5, 1000, 2**42]), min_size=1, max_size=12),
    st.integers(0, 14),
    st.floats(0, 1),
)
def test_thresholds_are_those_of_a_sorted_row(row: list[int], k: int, share: float) -> None:
    made, order, needed = torch.tensor([row]).float(), sorted(row, reverse=True), int(sum(row) * share)
    assert kth_largest(made, torch.tensor([[k]])).item() == (order[k - 1] if 0 < k <= len(row) else 0)
    reached = (weight for weight, total in zip(order, itertools.accumulate(order), strict=True) if total >= needed)
    assert nucleus_floor(made, torch.tensor([[needed]])).item() == (next(reached) if needed else 0)


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"top_k": 2}, {0, 1, 2, 3, 4}),  # the second largest has three equals
        ({"top_p": 0.35}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.2}, {0}),
        ({"min_p": 0.4}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.6}, {0}),
        ({"top_k": 1, "top_p": 0.99}, {0}),
        ({"top_k": 100}, set(range(6))),
    ],
    ids=str,
)
def test_tokens_of_equal_weight_are_kept_or_cut_together(change: dict[str, float], kept: set[int]) -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 1.0, 0.0]]) * math.log(2)  # shares 4, 2, 2, 2, 2 and 1 of 13
    draws = [FREE._replace(**change, key=random_key(1, position)) for position in range(500)]  # type: ignore[arg-type]
    assert set(TorchSampling().choose(logits.repeat(500, 1), draws, may_ban=False).tolist()) == kept
