"""The reference of token sampling draws from the softmax, and its cuts do not depend on the order of sums."""

from __future__ import annotations

import math

import pytest
import torch

from mmserve.model_backend.platforms.sampling import UNIT_BITS, Draw, TorchSampling, _weights_

FREE = Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, uniform=0.5)


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


def test_draws_are_those_of_inverting_a_softmax_in_double_precision() -> None:
    logits, uniforms = 3 * random(2000, 800), torch.rand(2000, generator=torch.manual_seed(1), dtype=torch.float64)
    cdf = torch.softmax(logits.double(), dim=-1).cumsum(dim=-1)
    expected = torch.searchsorted(cdf, cdf[:, -1:] * uniforms[:, None], right=True).squeeze(1)
    found = TorchSampling().choose(logits, [FREE._replace(uniform=u) for u in uniforms.tolist()], may_ban=False)
    assert torch.equal(found, expected)


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
    draws = [FREE._replace(**change, uniform=u / 500) for u in range(500)]  # type: ignore[arg-type]
    assert set(TorchSampling().choose(logits.repeat(500, 1), draws, may_ban=False).tolist()) == kept
