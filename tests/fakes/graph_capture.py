"""In place of a GPU's capture: the work is kept, and done again at each replay, on what its tensors hold then."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmserve.model_backend.platforms.cuda.graphs.capture import Captured


class Recorder:
    """See ``cuda.graphs.capture.Capture``. ``fails``: as work that waits for the device, which cannot be captured."""

    def __init__(self, *, fails: bool = False) -> None:
        self.num_captures = self.num_replays = 0
        self._fails = fails

    def __call__(self, work: Callable[[], torch.Tensor]) -> Captured:
        output = work()
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.num_captures += 1

        def replay() -> None:
            self.num_replays += 1
            output.copy_(work())

        output.fill_(torch.nan)  # a capture computes nothing
        return Captured(replay, output)
