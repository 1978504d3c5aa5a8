"""Sends the record of a step to the GPU (layout: ``kernels.record``), without waiting for the steps before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmserve.model_backend.platforms.cuda.attention.work import Int32s

_STEPS_IN_FLIGHT = 3
"""A step's host buffer is written again so many steps later; two steps are in flight at most."""


class _Staging(NamedTuple):
    ints: torch.Tensor
    copied: torch.cuda.Event | None
    """None where the device is the host."""


class StepRecord:
    """One int32 array on the device, written by one copy from pinned memory for each step.

    It moves when a step needs more room than any before it; a CUDA graph captured before must then be captured again.
    """

    def __init__(self, device: torch.device, num_ints: int) -> None:
        self._device, self._turn = device, 0
        self._reserve(num_ints)

    def write(self, sections: Sequence[Int32s]) -> torch.Tensor:
        """The array, valid until the next call; it is there for kernels issued on the current stream from now on."""
        header = 2 * len(sections)
        starts = np.cumsum([header, *(section.size for section in sections)])
        if starts[-1] > len(self._ints):
            self._reserve(2 * int(starts[-1]))
        staging = self._stagings[self._turn]
        self._turn = (self._turn + 1) % len(self._stagings)
        if staging.copied is not None:
            staging.copied.synchronize()
        host = staging.ints.numpy()
        host[0:header:2] = starts[:-1]
        host[1:header:2] = [len(section) for section in sections]
        for start, section in zip(starts.tolist(), sections, strict=False):
            host[start : start + section.size] = section.reshape(-1)
        end = int(starts[-1])
        self._ints[:end].copy_(staging.ints[:end], non_blocking=True)
        if staging.copied is not None:
            staging.copied.record(torch.cuda.current_stream(self._device))
        return self._ints

    def _reserve(self, num_ints: int) -> None:
        on_gpu = self._device.type == "cuda"
        self._ints = torch.zeros(num_ints, dtype=torch.int32, device=self._device)
        self._stagings = [
            _Staging(torch.zeros(num_ints, dtype=torch.int32, pin_memory=on_gpu), _event() if on_gpu else None)
            for _ in range(_STEPS_IN_FLIGHT)
        ]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event()  # type: ignore[no-untyped-call]
