"""Rows of drafts are sampled as if each token had a step of its own, by samplers with and without state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.sampling import TorchSampling
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.worker.sampling.draft_sampling import UNVERIFIED, DraftSampling, row_positions
from mmserve.model_backend.worker.sampling.sampler import Sampler, SampleRow

VOCAB = 7
PROMPT = np.array([1, 2, 3])
PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 5},
    {"temperature": 0.0, "repetition_penalty": 1.7},
    {"temperature": 1.5, "frequency_penalty": 1.5, "seed": 2},
    {"temperature": 0.0, "bad_words": ((1, 2), (3, 3))},
    {"temperature": 0.0, "min_tokens": 3, "stop_token_ids": (0, 1)},
    {"temperature": 0.0, "logit_bias": {2: 1.0}},
]


def sampler(sequences: list[SamplingParams]) -> Sampler:
    made = Sampler(VOCAB, TorchSampling(), PlainTransfers(torch.device("cpu")))
    for slot, params in enumerate(sequences):
        made.add_slot(slot, params, PROMPT, np.array([], dtype=np.int64))
    return made


def one_by_one(params: SamplingParams, slot: int, logits: torch.Tensor, draft: list[int], count: int) -> list[int]:
    """What the sequence in ``slot`` of ``count`` samples from its rows, up to the first token that is not drafted."""
    alone = sampler([params] * count)
    tokens: list[int] = []
    for place, row in enumerate(logits):
        found = alone.sample(row[None].clone(), [SampleRow(slot, params, len(PROMPT) + place)]).tolist()
        tokens += found
        alone.update(slot, found)
        if place == len(draft) or found != [draft[place]]:
            break
    return tokens


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(PARAMETERS), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4),
    st.integers(0, 1000),
)
def test_tokens_are_those_of_single_rows(sequences: list[tuple[dict[str, Any], int, int]], seed: int) -> None:
    params = [SamplingParams(max_tokens=50, **fields) for fields, _, _ in sequences]
    generator = torch.Generator().manual_seed(seed)
    logits = [torch.randn((1 + length, VOCAB), generator=generator) for _, length, _ in sequences]
    drafts: dict[int, list[int]] = {}
    for slot, (_, length, num_right) in enumerate(sequences):
        draft: list[int] = []
        for place in range(length):  # the first ``num_right`` are what the rows sample
            right = one_by_one(params[slot], slot, logits[slot], draft, len(params))[place : place + 1]
            draft.append(right[0] if right and place < num_right else 6)
        drafts |= {slot: draft} if draft else {}
    slots = [slot for slot, rows in enumerate(logits) for _ in rows]
    positions = row_positions(slots, [len(PROMPT)] * len(slots))
    rows = [SampleRow(slot, params[slot], position) for slot, position in zip(slots, positions, strict=True)]
    made = sampler(params)
    sampling = DraftSampling(made, rows, drafts)
    chosen = sampling.sample(torch.cat(logits)).tolist()
    for slot, own in enumerate(logits):
        expected = one_by_one(params[slot], slot, own, drafts.get(slot, []), len(params))
        found = [token for row, token in zip(rows, chosen, strict=True) if row.slot == slot]
        assert found == expected + [UNVERIFIED] * (len(own) - len(expected))
        # The sampler has been told of the rest by the caller: then its state is that of a sequence with these tokens.
        untold = [
            token
            for index, (row, token) in enumerate(zip(rows, chosen, strict=True))
            if row.slot == slot and token != UNVERIFIED and index not in sampling.told
        ]
        made.update(slot, untold)
        other = sampler(params)
        other.update(slot, expected)
        for trial in torch.randn((3, 1, VOCAB), generator=generator):
            row = [SampleRow(slot, params[slot], 50)]
            assert made.sample(trial.clone(), row).tolist() == other.sample(trial.clone(), row).tolist()


@pytest.mark.parametrize("fields", [PARAMETERS[0], PARAMETERS[2]])
def test_a_row_that_fails_after_right_ones_is_left_to_the_next_step(fields: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=50, **fields)
    logits = torch.full((3, VOCAB), -50.0)
    logits[0, 4] = logits[1, 5] = 50.0
    logits[1] = float("nan")
    rows = [SampleRow(0, params, 3 + place) for place in range(3)]
    assert DraftSampling(sampler([params]), rows, {0: (4, 5)}).sample(logits).tolist() == [4, UNVERIFIED, UNVERIFIED]
