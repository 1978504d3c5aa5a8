"""Choosing tokens: the device's are those of the reference on the CPU, from the same logits."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from benchmarks.gpu.checks import Figures, Settings
from benchmarks.gpu.rates.device import device_of
from benchmarks.gpu.rates.timing import Timer
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.sampling import TorchSampling
from mmserve.model_backend.worker.sampling.sampler import draw_of

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


def names(settings: Settings) -> Iterator[tuple[str, int, int]]:
    """(name, rows, vocabulary) of each case."""
    sizes = ((3, 100), (8, 5000)) if settings.small else ((1, 128_256), (64, 151_936), (5, 100), (256, 32_000))
    for rows, vocab in sizes:
        yield f"sampling, {rows} x {vocab}", rows, vocab


def compare(settings: Settings, rows: int, vocab: int) -> Figures:
    """Tokens of all kinds of parameters. Raises AssertionError if one differs."""
    device, rng = device_of(settings), random.Random(settings.seed)
    sampling = platform_for(device.type, "float32").sampling()
    logits = 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(settings.seed))
    draws = [draw_of(_params(rng), position=slot + 7) for slot in range(rows)]
    expected = TorchSampling().choose(logits.clone(), draws, may_ban=False)
    found = sampling.choose(logits.to(device), draws, may_ban=False).cpu()
    assert torch.equal(found, expected), f"{int((found != expected).sum())} of {rows} tokens differ"
    again = sampling.choose(logits.to(device), draws, may_ban=False).cpu()
    assert torch.equal(found, again), "not the same tokens twice"
    on_device = logits.to(device)
    seconds = Timer(device, small=settings.small).median_s(
        lambda: sampling.choose(on_device, draws, may_ban=False), flush=True
    )
    logits[0, vocab // 2] = float("nan")
    assert sampling.choose(logits.to(device), draws, may_ban=False)[0] < 0, "a row with NaN got a token"
    return {"rows": rows, "ms": 1e3 * seconds}


def _params(rng: random.Random) -> SamplingParams:
    if rng.random() < 0.2:
        return _GREEDY
    return SamplingParams(
        max_tokens=1,
        temperature=rng.choice((0.3, 0.8, 1.0, 1.5)),
        top_k=rng.choice((0, 0, 1, 20, 400)),
        top_p=rng.choice((1.0, 1.0, 0.9, 0.5)),
        min_p=rng.choice((0.0, 0.0, 0.05)),
        seed=rng.getrandbits(63),
    )
