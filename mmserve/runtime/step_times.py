"""How long the steps are that ranks compute on their GPUs now, shared with visual servers through a mapped file.

A visual server on the same card computes less at a time while there are steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from mmserve.runtime.memory.mapped_file import map_file

_US = 1e6
_UNKNOWN_US = 1
"""A step is computed, and none was measured yet."""


class StepTimes:
    """Of all ranks. Creates the file at ``path`` if needed; it stays mapped for the life of the process."""

    def __init__(self, path: Path, num_ranks: int) -> None:
        times = ctypes.c_int32 * num_ranks
        self._us = times.from_buffer(map_file(path, ctypes.sizeof(times)))

    def write(self, rank: int, num_plans: int, step_s: float) -> None:
        """The rank's device has so many plans to compute. ``step_s``: 0 if no step was measured yet."""
        self._us[rank] = max(_UNKNOWN_US, int(step_s * _US)) if num_plans else 0

    def shortest_s(self, ranks: Sequence[int]) -> float | None:
        """Of those of these ranks that compute now; None: none does."""
        computing = [us for us in (self._us[rank] for rank in ranks) if us]
        return min(computing) / _US if computing else None
