"""Log-probabilities equal those of transformers in float32, for any sampling parameters and any batch."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.messages.logprobs import unpack
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.sampling import NOT_FINITE, TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.logprobs import ModelLogprobs
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow
from tests.fakes.models.checkpoints import VOCAB, make_llama
from tests.fakes.ranks.engine import BLOCK_TOKENS, Driver, make_runner
from tests.fakes.ranks.logprobs import check_logprobs

NUM_NEW = 10


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=100, **changes)


def reported(logits: torch.Tensor, asked: list[SamplingParams]) -> dict[int, list[tuple[int, float]]]:
    """By row: the log-probabilities of the tokens that a sampler chooses, for prompts of the tokens 1 and 2."""
    sampler = Sampler(logits.shape[1], TorchSampling(), PlainTransfers(logits.device))
    rows = [SampleRow(slot, each, position=2) for slot, each in enumerate(asked)]
    for each in rows:
        sampler.add_slot(each.slot, each.sampling, np.array([1, 2]), np.array([], dtype=np.int64))
    logprobs = ModelLogprobs(logits, asked, PlainTransfers(logits.device))
    chosen = sampler.sample(logits, rows)
    logprobs.compute(chosen)
    return {index: unpack(packed) for index, packed in logprobs.pack(chosen.tolist())}


def close(found: list[tuple[int, float]], probs: list[tuple[int, float]]) -> bool:
    return [token for token, _ in found] == [token for token, _ in probs] and [value for _, value in found] == (
        pytest.approx([math.log(prob) for _, prob in probs])
    )


def ln(*probs: float) -> torch.Tensor:
    return torch.tensor([[math.log(prob) for prob in probs]])


def test_the_sampled_token_and_the_requested_number_of_top_tokens_are_reported() -> None:
    values = ln(0.1, 0.2, 0.4, 0.3).repeat(4, 1)
    rows = [params(temperature=0.0, logprobs=top) for top in (0, 2, None, 20)]
    found = reported(values, rows)
    assert [[token for token, _ in found[index]] for index in (0, 1, 3)] == [[2], [2, 2, 3], [2, 2, 3, 1, 0]]
    assert close(found[1], [(2, 0.4), (2, 0.4), (3, 0.3)])
    assert 2 not in found


def test_they_are_taken_before_any_sampling_parameter_changes_the_logits() -> None:
    changes: list[dict[str, Any]] = [
        {"temperature": 0.3},
        {"temperature": 2.0, "top_k": 1},
        {"top_p": 0.1, "min_p": 0.5},
        {"temperature": 0.0, "logit_bias": {0: 100.0}},
        {"temperature": 0.0, "repetition_penalty": 3.0},
        {"temperature": 0.0, "stop_token_ids": (2,), "min_tokens": 5},
    ]
    probs = (0.1, 0.2, 0.4, 0.3)
    found = reported(ln(*probs).repeat(len(changes), 1), [params(logprobs=4, seed=3, **change) for change in changes])
    assert found[3][0][0] == 0, "forced by the bias, and still as unlikely as the model thought"
    for pairs in found.values():
        own = pairs[0][0]
        assert close(pairs, [(own, probs[own]), (2, 0.4), (3, 0.3), (1, 0.2), (0, 0.1)])


def test_equal_top_tokens_are_ordered_by_id() -> None:
    values = torch.zeros(1, 50)
    values[0, 40:] = 1.0
    own, *likely = reported(values, [params(temperature=0.0, logprobs=5)])[0]
    assert [own[0], *(token for token, _ in likely)] == [40, 40, 41, 42, 43, 44]


def test_a_row_that_is_not_finite_reports_nothing_and_changes_no_other() -> None:
    values = ln(0.1, 0.2, 0.4, 0.3).repeat(3, 1)
    values[1, 0] = math.nan
    found = reported(values, [params(temperature=0.0, logprobs=2)] * 3)
    assert sorted(found) == [0, 2]
    assert found[0] == found[2]
    logprobs = ModelLogprobs(values, [params(logprobs=2)] * 3, PlainTransfers(values.device))
    logprobs.compute(torch.tensor([NOT_FINITE] * 3))
    assert logprobs.pack([NOT_FINITE] * 3) == []


def test_without_requests_the_logits_are_not_read() -> None:
    logits: Any = None
    logprobs = ModelLogprobs(logits, [params(), params()], PlainTransfers(torch.device("cpu")))
    logprobs.compute(torch.tensor([3, 4]))
    assert logprobs.pack([3, 4]) == []


@given(
    tops=st.lists(st.sampled_from([None, 0, 1, 5, 20]), min_size=1, max_size=6),
    noise=st.integers(0, 2**31),
    step=st.sampled_from([0, 2]),
)
@settings(max_examples=40, deadline=None)
def test_a_row_reports_the_same_alone_and_in_a_batch(tops: list[int | None], noise: int, step: int) -> None:
    values = 3 * torch.randn(len(tops), 600, generator=torch.manual_seed(noise))
    if step:  # coarse values as bfloat16 gives: many ties
        values = (values * step).round() / step
    rows = [params(logprobs=top, seed=index) for index, top in enumerate(tops)]
    together = reported(values.clone(), rows)
    assert together == {
        index: found
        for index, one in enumerate(rows)
        for found in reported(values[index : index + 1].clone(), [one]).values()
    }
    assert all(len(found) == 1 + tops[index] for index, found in together.items())


# ---- against transformers


@pytest.fixture(scope="module", params=[{}, {"head_dim": 16}], ids=["plain", "kernels"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), **request.param)


def prompts(*lengths: int) -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(4, VOCAB) for _ in range(length)] for length in lengths]


def asking(top: int, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=1000, logprobs=top, **params)


@pytest.mark.parametrize("chunk", [1000, 20], ids=["whole", "chunked"])
def test_one_sequence_alone_equals_transformers(directory: Path, chunk: int) -> None:
    for prompt in prompts(1, 70):
        driver = Driver(make_runner(directory), chunk=chunk)
        sequence = driver.add(0, prompt, sampling=asking(5, temperature=0.0))
        driver.run(NUM_NEW)
        check_logprobs(directory, prompt, sequence.output, sequence.logprobs)


@pytest.mark.parametrize("chunk", [1000, 20], ids=["whole", "chunked"])
def test_sequences_with_different_parameters_in_one_batch_equal_transformers(directory: Path, chunk: int) -> None:
    driver = Driver(make_runner(directory), chunk=chunk)
    params = [
        asking(5, temperature=0.0),
        asking(20, temperature=1.3, top_p=0.9, seed=4),
        SamplingParams(max_tokens=1000, seed=5),
        asking(5, repetition_penalty=1.7, presence_penalty=1.0, logit_bias={9: 5.0}, seed=6),
        asking(0, seed=7),
    ]
    texts = prompts(5, 16, 33, 70, 3)
    sequences = [driver.add(slot, text, sampling=params[slot]) for slot, text in enumerate(texts)]
    driver.run(NUM_NEW)
    assert sequences.pop(2).logprobs == []
    for sequence in sequences:
        assert {len(pairs) for pairs in sequence.logprobs} == {1 + sequence.sampling.logprobs}
        check_logprobs(directory, texts[sequence.slot], sequence.output, sequence.logprobs)


def test_a_sequence_with_a_prefix_hit_equals_transformers(directory: Path) -> None:
    driver = Driver(make_runner(directory), chunk=30)
    shared, tail, other_tail = prompts(39, 12, 7)
    first = driver.add(0, shared + tail)
    driver.run(5)
    num_whole, num_copied = divmod(len(shared), BLOCK_TOKENS)
    hit = driver.add(
        1,
        shared + other_tail,
        shared=tuple(first.blocks[:num_whole]),
        copied=(first.blocks[num_whole], num_copied),
        sampling=asking(5, temperature=0.0),
    )
    driver.run(NUM_NEW)
    check_logprobs(directory, shared + other_tail, hit.output, hit.logprobs)


def test_after_preemption_only_new_tokens_are_reported(directory: Path) -> None:
    driver = Driver(make_runner(directory), chunk=16)
    [prompt] = prompts(30)
    victim = driver.add(0, prompt, sampling=asking(5, seed=8))
    while len(victim.output) < 6:
        driver.step()
    driver.drop(victim)
    driver.step()
    check_logprobs(directory, prompt, victim.output, victim.logprobs)
    resumed = driver.add(3, victim.tokens, num_prompt=len(prompt), sampling=victim.sampling)
    driver.run(NUM_NEW + 6)
    check_logprobs(directory, victim.tokens, resumed.output[6:], resumed.logprobs)
