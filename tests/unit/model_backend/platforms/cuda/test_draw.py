"""Tokens drawn by Triton's kernel, in its interpreter: those of torch, to the bit."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from mmserve.model_backend.platforms.cuda import sampling
from mmserve.model_backend.platforms.cuda.sampling import TritonSampling, working_sampling
from mmserve.model_backend.platforms.sampling import GREEDY, NOT_FINITE, Draw, TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.counter_random import random_key
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
TRANSFERS = PlainTransfers(torch.device("cpu"))
FREE = Draw(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, key=0)
CUTS = {
    "none": [FREE, FREE._replace(temperature=0.3), FREE._replace(temperature=2.0)],
    "min_p": [FREE._replace(min_p=0.05), FREE._replace(min_p=1.0), FREE],
    "top_k": [FREE._replace(top_k=1), FREE._replace(top_k=7), FREE._replace(top_k=5000), FREE],
    "top_p": [FREE._replace(top_p=0.0), FREE._replace(top_p=0.6), FREE._replace(top_p=0.9999), FREE],
    "all": [FREE._replace(top_k=40, top_p=0.9, min_p=0.001), FREE._replace(top_k=3), FREE._replace(temperature=0.0)],
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_BLOCK", 128)


@pytest.mark.parametrize(("vocab", "step"), [(1, 0.0), (7, 0.0), (300, 0.0), (300, 0.5)])
@pytest.mark.parametrize("cuts", CUTS)
def test_tokens_are_those_of_torch(cuts: str, vocab: int, step: float) -> None:
    draws = [draw._replace(key=random_key(vocab, row)) for row, draw in enumerate(CUTS[cuts])]
    logits = 3 * torch.randn(len(draws), vocab, generator=torch.Generator().manual_seed(vocab))
    if step:  # coarse values, as bfloat16 gives them
        logits = (logits / step).round() * step
    logits[0, vocab // 2 :] = -torch.inf if vocab > 1 else 0.0
    before = logits.clone()
    found = TritonSampling(TRANSFERS).choose(logits, draws, may_ban=True)
    assert torch.equal(logits, before)
    assert torch.equal(found, TorchSampling(TRANSFERS).choose(before, draws, may_ban=True))


@pytest.mark.parametrize(("vocab", "dtype"), [(1, torch.float32), (300, torch.float32), (300, torch.bfloat16)], ids=str)
def test_one_launch_chooses_greedy_drawn_and_broken_rows(vocab: int, dtype: torch.dtype) -> None:
    draws = [draw._replace(key=random_key(vocab, row)) for row, draw in enumerate(chain(*CUTS.values()))]
    logits = (3 * torch.randn(len(draws) + 2, vocab, generator=torch.Generator().manual_seed(1))).to(dtype)
    logits[-2, vocab // 2], logits[-1, vocab - 1] = torch.nan, -torch.inf
    logits[len(draws) - 1] = logits[len(draws) - 1].round()  # the greedy row has equal ones
    draws += [FREE, GREEDY]
    before, numbers = logits.clone(), torch.tensor([draw.numbers for draw in draws], dtype=torch.float64)
    found = TritonSampling(TRANSFERS).choose_by(logits, numbers)
    assert torch.equal(found, TorchSampling(TRANSFERS).choose(before.float(), draws, may_ban=False))
    assert torch.equal(found, TorchSampling(TRANSFERS).choose_by(logits, numbers))
    assert torch.equal(logits.nan_to_num(), before.nan_to_num())
    assert found[-2:].tolist() == [NOT_FINITE] * 2


def test_a_kernel_that_passes_its_test_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_CUTS", sampling._CUTS[:1])
    assert isinstance(working_sampling(TRANSFERS), TritonSampling)


def test_a_kernel_that_draws_other_tokens_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def first(self: TritonSampling, logits: torch.Tensor, draws: list[Draw]) -> torch.Tensor:
        return torch.zeros(len(draws), dtype=torch.int64)

    monkeypatch.setattr(sampling.TritonSampling, "_draw", first)
    assert type(working_sampling(TRANSFERS)) is TorchSampling
    assert "differ" in caplog.text
