"""Effect of each sampling parameter, reproducibility, and independence of a row from other rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.sampling import NO_TOKEN_ALLOWED, NOT_FINITE, TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow

VOCAB = 600


@dataclass(frozen=True)
class Request:
    """A sequence about to get a token."""

    sampling: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def row(prompt: tuple[int, ...] = (1, 2), output: tuple[int, ...] = (), **params: Any) -> Request:
    return Request(SamplingParams(max_tokens=100, **params), prompt, output)


def sample(logits: torch.Tensor, requests: Sequence[Request], image_token_id: int | None = None) -> list[int]:
    """What a sampler chooses when request i is in slot i."""
    sampler = Sampler(logits.shape[1], TorchSampling(), PlainTransfers(logits.device), image_token_id=image_token_id)
    rows = []
    for slot, request in enumerate(requests):
        prompt, output = (np.array(tokens, dtype=np.int64) for tokens in (request.prompt, request.output))
        sampler.add_slot(slot, request.sampling, prompt, output)
        rows.append(SampleRow(slot, request.sampling, len(prompt) + len(output)))
    return sampler.sample(logits, rows).tolist()


def logits(*rows: dict[int, float], floor: float = 0.0) -> torch.Tensor:
    made = torch.full((len(rows), VOCAB), floor)
    for index, values in enumerate(rows):
        for token, value in values.items():
            made[index, token] = value
    return made


def frequencies(values: torch.Tensor, draws: int = 4000, **params: Any) -> dict[int, float]:
    rows = [row(seed=seed, **params) for seed in range(draws)]
    counts = Counter(sample(values.expand(draws, -1).clone(), rows))
    return {token: count / draws for token, count in counts.items()}


def test_temperature_zero_samples_the_largest_logit() -> None:
    assert sample(logits({5: 1.0}, {9: 2.0, 3: 1.9}), [row(temperature=0.0)] * 2) == [5, 9]


def test_the_image_token_counts_as_repeated_after_an_image() -> None:
    values = logits(*[{7: 1.0, 9: 0.9}] * 3)
    image = (1, FIRST_VIRTUAL_TOKEN + 4)
    requests = [row(prompt, temperature=0.0, repetition_penalty=1.5) for prompt in (image, (1,), (1, 7))]
    assert sample(values.clone(), requests, image_token_id=7) == [9, 7, 9]
    assert sample(values.clone(), requests) == [7, 7, 9]


def test_draws_follow_the_distribution() -> None:
    values = logits({3: math.log(0.5), 4: math.log(0.3), 5: math.log(0.2)}, floor=-1e9)
    found = frequencies(values)
    assert found == pytest.approx({3: 0.5, 4: 0.3, 5: 0.2}, abs=0.03)
    sharper = frequencies(values, temperature=0.5)
    assert sharper == pytest.approx({3: 0.25 / 0.38, 4: 0.09 / 0.38, 5: 0.04 / 0.38}, abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {3, 4}),
        ({"top_k": 1}, {3}),
        ({"top_k": 10_000}, {3, 4, 5}),
        ({"top_p": 0.79}, {3, 4}),
        ({"top_p": 0.5}, {3}),
        ({"top_p": 0.0}, {3}),
        ({"top_p": 0.95}, {3, 4, 5}),
        ({"min_p": 0.5}, {3, 4}),
        ({"min_p": 1.0}, {3}),
        ({"top_k": 2, "top_p": 0.6}, {3}),
    ],
)
def test_truncation_keeps_exactly_the_expected_tokens(params: dict[str, Any], kept: set[int]) -> None:
    values = logits({3: math.log(0.5), 4: math.log(0.3), 5: math.log(0.2)}, floor=-1e9)
    assert set(frequencies(values, draws=400, **params)) == kept


def test_top_p_over_a_flat_distribution_looks_beyond_the_head() -> None:
    values = torch.arange(VOCAB, 0, -1).float()[None] * 1e-4
    probs = torch.softmax(values[0], -1).cumsum(-1)
    last = int((probs < 0.9).sum())
    assert last > 300
    chosen = sample(values.expand(3000, -1).clone(), [row(seed=seed, top_p=0.9) for seed in range(3000)])
    assert last * 0.95 < max(chosen) <= last


def test_penalties_bias_and_min_tokens() -> None:
    greedy: dict[str, Any] = {"temperature": 0.0}
    values = logits({7: 2.0, 8: 1.5})
    assert sample(values.clone(), [row((7,), repetition_penalty=2.0, **greedy)]) == [8]
    assert sample(values.clone(), [row((7,), presence_penalty=1.0, **greedy)]) == [7], "the prompt does not count"
    assert sample(values.clone(), [row((1,), (7,), presence_penalty=1.0, **greedy)]) == [8]
    assert sample(values.clone(), [row((1,), (7,), frequency_penalty=0.3, **greedy)]) == [7]
    assert sample(values.clone(), [row((1,), (7, 7), frequency_penalty=0.3, **greedy)]) == [8]
    assert sample(values.clone(), [row(logit_bias={20: 100.0, VOCAB + 3: 100.0}, **greedy)]) == [20]
    assert sample(values.clone(), [row((1,), (4,), min_tokens=2, stop_token_ids=(7,), **greedy)]) == [8]
    assert sample(values.clone(), [row((1,), (4, 4), min_tokens=2, stop_token_ids=(7,), **greedy)]) == [7]
    assert sample(values.clone(), [row(min_tokens=2, **greedy)]) == [7]


def test_negative_logits_are_penalised_downwards_and_images_are_ignored() -> None:
    values = logits({7: -1.0, 8: -1.5}, floor=-9.0)
    images = tuple(range(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 5))
    assert sample(values, [row((7, *images), repetition_penalty=2.0, temperature=0.0)]) == [8]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_fail_only_their_row(bad: float) -> None:
    values = logits({5: 1.0}, {6: bad}, {7: 9.0})
    rows = [row(temperature=0.0), row(top_p=0.9, seed=1), row(temperature=0.0)]
    assert sample(values, rows) == [5, NOT_FINITE, 7]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_which_all_tokens_are_banned_gets_none(temperature: float) -> None:
    values = logits({5: 1.0}, {6: 1.0}, {7: 9.0})
    stops = tuple(range(VOCAB))
    banned = row(temperature=temperature, top_p=0.9, top_k=5, seed=1, min_tokens=2, stop_token_ids=stops)
    rows = [row(temperature=0.0), banned, row(temperature=0.0)]
    assert sample(values, rows) == [5, NO_TOKEN_ALLOWED, 7]


params_of_a_row = st.builds(
    row,
    prompt=st.tuples(st.integers(0, VOCAB - 1), st.integers(0, VOCAB - 1)),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=4).map(tuple),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_p=st.sampled_from([0.1, 0.9, 0.999, 1.0]),
    top_k=st.sampled_from([0, 1, 5, 400]),
    min_p=st.sampled_from([0.0, 0.05]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=2),
    seed=st.integers(-(2**63), 2**64 - 1),
)


@given(
    rows=st.lists(params_of_a_row, min_size=1, max_size=6), noise=st.integers(0, 2**31), step=st.sampled_from([0, 4])
)
@settings(max_examples=60, deadline=None)
def test_a_row_gets_the_same_token_alone_and_in_a_batch(rows: list[Request], noise: int, step: int) -> None:
    values = 3 * torch.randn(len(rows), VOCAB, generator=torch.manual_seed(noise))
    if step:  # coarse values, as bfloat16 gives them: many ties
        values = (values * step).round() / step
    together = sample(values.clone(), rows)
    assert together == [sample(values[index : index + 1].clone(), [one])[0] for index, one in enumerate(rows)]
    assert all(0 <= token < VOCAB for token in together)
