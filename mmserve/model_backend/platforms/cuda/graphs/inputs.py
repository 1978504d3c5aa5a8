"""The tensors that a captured step reads: a step's inputs are copied into them at once, and its graph is replayed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from mmserve.model_backend.platforms.decode_graphs import SAMPLED_HERE, DecodeRows
from mmserve.model_backend.platforms.sampling import GREEDY, NUM_DRAW_NUMBERS
from mmserve.model_backend.transfers import Transfers

_COLUMNS = 4
_WORDS = _COLUMNS + NUM_DRAW_NUMBERS
"""Of 8 bytes, for each row."""


class RowInputs(NamedTuple):
    """Of so many rows, on the device."""

    slots: torch.Tensor
    token_ids: torch.Tensor
    positions: torch.Tensor
    """[1, rows]."""
    targets: torch.Tensor
    """Where each row's token goes."""
    draws: torch.Tensor
    """float64 [rows, 6], see ``Draw.numbers``."""


class StepInputs:
    """Room for ``max_rows`` rows. All graphs share it. ``nobody``: the slot of rows that fill a step up."""

    def __init__(self, max_rows: int, nobody: int, transfers: Transfers) -> None:
        self._nobody, self._transfers = nobody, transfers
        self._words = torch.zeros(_WORDS * max_rows, dtype=torch.int64, device=transfers.device)

    def of(self, rows: int) -> RowInputs:
        """Views, which stay where they are."""
        columns = self._words[: _COLUMNS * rows].view(_COLUMNS, rows)
        draws = self._words[_COLUMNS * rows : _WORDS * rows].view(torch.float64).view(rows, NUM_DRAW_NUMBERS)
        return RowInputs(columns[0], columns[1], columns[2:3], columns[3], draws)

    def fill(self, rows: int, step: DecodeRows) -> None:
        """With a step of at most so many rows, by one copy."""
        words = np.zeros(_WORDS * rows, dtype=np.int64)
        columns, count = words[: _COLUMNS * rows].reshape(_COLUMNS, rows), len(step.slots)
        columns[0], columns[3] = self._nobody, self._nobody
        columns[0, :count] = step.slots
        columns[1, :count] = step.token_ids
        columns[1, count:] = SAMPLED_HERE
        columns[2, :count] = step.positions
        columns[3, step.sampling] = step.slots[step.sampling]
        numbers = words[_COLUMNS * rows :].view(np.float64).reshape(rows, NUM_DRAW_NUMBERS)
        numbers[:] = GREEDY.numbers
        if step.draws:
            numbers[step.sampling] = [draw.numbers for draw in step.draws]
        self._transfers.copy_into(self._words[: len(words)], torch.from_numpy(words))
