"""Compares log-probabilities with those of transformers, computed for the whole text at once in float32 on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import transformers

TOLERANCE = 2e-5


def check_logprobs(
    directory: Path,
    before: Sequence[int],
    output: Sequence[int],
    found: Sequence[Sequence[tuple[int, float]]],
    tolerance: float = TOLERANCE,
) -> None:
    """``found`` (unpacked) must be the log-probabilities of the tokens ``output``, generated after ``before``."""
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[*before, *output]])).logits[0, len(before) - 1 : -1]
    assert len(found) == len(output) > 0
    for token, pairs, expected in zip(output, found, torch.log_softmax(logits, dim=-1), strict=True):
        (own, logprob), likely = pairs[0], pairs[1:]
        top = expected.topk(len(likely)).values.tolist()
        assert (own, logprob) == (token, pytest.approx(expected[token].item(), abs=tolerance))
        assert [value for _, value in likely] == pytest.approx(top, abs=tolerance)
        assert [expected[id].item() for id, _ in likely] == pytest.approx(top, abs=tolerance)
