"""The part of decode steps in which the device has nothing to do, from events: a profiler would slow the host down."""

from __future__ import annotations

import time

import torch


class Marks:
    """Moments in the order of the device's work; on a CPU, which computes at once, the host's."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._events: list[torch.cuda.Event] = []
        self._moments_s: list[float] = []

    def mark(self) -> None:
        """When what was launched so far is done."""
        if not self._on_gpu:
            self._moments_s.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def period_s(self) -> float:
        """From one mark to the next, on average of at least two. Waits for the last one."""
        if not self._on_gpu:
            return (self._moments_s[-1] - self._moments_s[0]) / (len(self._moments_s) - 1)
        self._events[-1].synchronize()
        return float(self._events[0].elapsed_time(self._events[-1])) / 1e3 / (len(self._events) - 1)


def idle(period_s: float, busy_s: float) -> float:
    """Part of a step that is not ``busy_s``, which the same step takes when the device is never left waiting."""
    return max(0.0, 1.0 - busy_s / period_s)
