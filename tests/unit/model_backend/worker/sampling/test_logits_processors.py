"""Logits processors with state give what the formulas over the whole sequence give."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.logits_processors import make_processors

VOCAB = 50
NOT_IN_VOCAB = [VOCAB, FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 7]


def whole_sequence_formula(logits: torch.Tensor, sampling: SamplingParams, prompt: Any, output: Any) -> None:
    """Penalties, bias and banned tokens of one row [vocab] in place, computed from all tokens of the sequence."""
    if sampling.repetition_penalty != 1.0:
        seen = np.union1d(prompt, output)
        ids = torch.from_numpy(seen[seen < VOCAB])
        values = logits[ids]
        penalty = sampling.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        seen, counts = np.unique(output[output < VOCAB], return_counts=True)
        penalties = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits[torch.from_numpy(seen)] -= torch.from_numpy(penalties).to(logits.dtype)
    if bias := {token: value for token, value in sampling.logit_bias.items() if 0 <= token < VOCAB}:
        logits[list(bias)] += torch.tensor(list(bias.values()), dtype=logits.dtype)
    logits[sorted(banned_tokens(sampling, output.tolist()))] = float("-inf")


def banned_tokens(sampling: SamplingParams, output: list[int]) -> set[int]:
    """Every token in turn: would the output with it contain a bad word, or end too early?"""
    endings = {*sampling.eos_token_ids, *sampling.stop_token_ids}
    return {
        token
        for token in range(VOCAB)
        if (len(output) < sampling.min_tokens and token in endings)
        or (sampling.allowed_token_ids and token not in sampling.allowed_token_ids)
        or any([*output, token][-len(word) :] == list(word) for word in sampling.bad_words)
    }


tokens = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from(NOT_IN_VOCAB))
few_tokens = st.lists(st.integers(0, 4), max_size=8)
params = st.builds(
    SamplingParams,
    max_tokens=st.just(100),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    presence_penalty=st.sampled_from([0.0, 0.7, -1.1]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.1]),
    logit_bias=st.dictionaries(st.integers(-1, VOCAB + 1), st.floats(-100, 100, width=32), max_size=3),
    min_tokens=st.integers(0, 8),
    eos_token_ids=st.lists(st.integers(0, 4), max_size=1).map(tuple),
    stop_token_ids=st.lists(st.integers(-1, VOCAB + 1), max_size=3).map(tuple),
    allowed_token_ids=st.just(()) | st.lists(st.integers(-1, VOCAB + 1), min_size=1, max_size=6).map(tuple),
    bad_words=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple), max_size=6).map(tuple),
)
sequences = st.tuples(
    params, st.lists(tokens, min_size=1, max_size=90), few_tokens, st.lists(few_tokens, min_size=1, max_size=4)
)


@given(st.lists(sequences, min_size=1, max_size=4), st.integers(0, 2**31))
def test_processors_equal_the_formula_over_the_whole_sequence(batch: list[Any], seed: int) -> None:
    """Sequences enter with some output (a resumed request) and get several tokens at a time."""
    processors = make_processors(VOCAB, PlainTransfers(torch.device("cpu")))
    slots = [3 * index for index in range(len(batch))]
    for slot, (sampling, prompt, output, _) in zip(slots, batch, strict=True):
        for processor in processors:
            processor.add_slot(slot, sampling, np.array(prompt), np.array(output, dtype=np.int64))
    for step in range(max(len(updates) for *_, updates in batch)):
        logits = 3 * torch.randn(len(batch), VOCAB, generator=torch.manual_seed(seed + step))
        expected = logits.clone()
        for row, (sampling, prompt, output, _) in enumerate(batch):
            whole_sequence_formula(expected[row], sampling, np.array(prompt), np.array(output, dtype=np.int64))
        for processor in processors:
            processor.apply(logits, slots)
        assert torch.equal(logits, expected)
        for slot, (_, _, output, updates) in zip(slots, batch, strict=True):
            new = updates[step] if step < len(updates) else [step]
            output += new
            for processor in processors:
                processor.update(slot, new)


def test_a_slot_keeps_nothing_of_the_sequence_before() -> None:
    sampling = SamplingParams(
        max_tokens=9,
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logit_bias={3: 1.0},
        min_tokens=9,
        stop_token_ids=(4,),
        allowed_token_ids=(6, 7),
        bad_words=((7,), (2, 8), (5, 9)),
    )
    processors = make_processors(VOCAB, PlainTransfers(torch.device("cpu")))
    logits = torch.ones(1, VOCAB)
    for processor in processors:
        processor.add_slot(0, sampling, np.array([1]), np.array([2]))
        processor.remove_slot(0)
        processor.update(0, [5])
        processor.apply(logits, [0])
    assert torch.equal(logits, torch.ones(1, VOCAB))


def test_a_slot_without_parameters_has_no_state() -> None:
    processors = make_processors(VOCAB, PlainTransfers(torch.device("cpu")))
    nothing: Any = None
    for processor in processors:
        processor.add_slot(0, SamplingParams(max_tokens=9), np.array([1]), np.array([2]))
        processor.apply(nothing, [0])


def test_what_a_bias_cannot_do() -> None:
    """Bring back a token that is banned."""
    most = dict.fromkeys(range(VOCAB), 100.0)
    sampling = SamplingParams(
        max_tokens=9,
        logit_bias=most,
        repetition_penalty=0.1,
        allowed_token_ids=(1, 2, 3, 4),
        bad_words=((2,), (9, 3)),
        eos_token_ids=(4,),
        min_tokens=5,
    )
    logits = torch.ones(1, VOCAB)
    for processor in make_processors(VOCAB, PlainTransfers(torch.device("cpu"))):
        processor.add_slot(0, sampling, np.array([1, 2, 3, 4]), np.array([8, 9]))
        processor.apply(logits, [0])
    assert torch.isfinite(logits[0]).nonzero().flatten().tolist() == [1]
