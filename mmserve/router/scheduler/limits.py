"""What the scheduler may use, as configured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """``max_num_seqs``: slots. ``max_num_batched_tokens``: of one step. ``max_model_len``: prompt plus output.
    ``max_step_s``: see StepTimeModel."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_step_s: float = 0.0
