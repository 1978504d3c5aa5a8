"""In place of a GPU's capture: the work is kept, and done again at each replay, on what its tensors hold then."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from mmserve.model_backend.platforms.cuda.graphs.capture import Captured


class Recorder:
    """See ``cuda.graphs.capture.Capture``. ``fails``: as work that waits for the device, which cannot be captured.

    ``most_rows``: memory runs out for graphs of more."""

    def __init__(self, *, fails: bool = False, most_rows: int = sys.maxsize) -> None:
        self.num_captures = self.num_replays = 0
        self._fails, self._most_rows = fails, most_rows

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        output = work()
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        if len(output) > self._most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.num_captures += 1

        def replay() -> None:
            self.num_replays += 1
            output.copy_(work())

        output.fill_(torch.nan)  # a capture computes nothing
        return Captured(replay, output)
