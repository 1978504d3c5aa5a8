"""Per-sequence changes to logits before a token is chosen: penalties, biases, forbidden stop tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.worker.input_batch import Int64s


def needs_edits(sampling: SamplingParams, num_output: int) -> bool:
    """Does this sequence need any edit at all?"""
    return bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
        or num_output < sampling.min_tokens
    )


def edit_(logits: torch.Tensor, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> None:
    """Change one row of float logits [vocab] in place.

    Repetition penalty (Keskar et al. 2019) looks at prompt and output, presence and frequency penalties (OpenAI's
    definition) at the output only. Ids beyond the vocabulary (images) are ignored.
    """
    vocab_size = logits.shape[0]
    if sampling.repetition_penalty != 1.0:
        seen = np.union1d(prompt, output)
        ids = _on(logits, seen[seen < vocab_size])
        values = logits[ids]
        penalty = sampling.repetition_penalty
        logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
    if sampling.presence_penalty or sampling.frequency_penalty:
        seen, counts = np.unique(output[output < vocab_size], return_counts=True)
        penalties = sampling.presence_penalty + sampling.frequency_penalty * counts
        logits[_on(logits, seen)] -= _on(logits, penalties).to(logits.dtype)
    if bias := {token: value for token, value in sampling.logit_bias.items() if 0 <= token < vocab_size}:
        logits[list(bias)] += torch.tensor(list(bias.values()), dtype=logits.dtype, device=logits.device)
    if len(output) < sampling.min_tokens:
        logits[[token for token in sampling.stop_token_ids if 0 <= token < vocab_size]] = float("-inf")


def _on(like: torch.Tensor, values: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)
