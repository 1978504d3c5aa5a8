"""The tensors that a captured step reads: a step's inputs are copied into them, and its graph is replayed."""

from __future__ import annotations

import torch


class StepInputs:
    """Room for ``max_rows`` rows. All graphs share it: one of fewer rows reads the first ones."""

    def __init__(self, max_rows: int, hidden: torch.Tensor) -> None:
        """``hidden``: of a step, for its width, dtype and device."""
        self._hidden = hidden.new_zeros(max_rows, hidden.shape[1])
        self._positions, self._wanted = torch.zeros(2, max_rows, dtype=torch.int64, device=hidden.device)

    def of(self, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """hidden [rows, width], positions [1, rows] and logits_indices [rows], which stay where they are."""
        return self._hidden[:rows], self._positions[None, :rows], self._wanted[:rows]

    def fill(self, rows: int, hidden: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> None:
        """With a step of at most so many rows; what is behind it becomes 0.

        hidden, positions [1, T] and ``wanted`` (logits_indices): as in ``DecoderModel.forward``.
        """
        pairs = ((self._hidden, hidden), (self._positions, positions[0]), (self._wanted, wanted))
        for buffer, source in pairs:
            buffer[: len(source)].copy_(source)
            if len(source) < rows:
                buffer[len(source) : rows].zero_()
