"""Times work on a device: medians, after warm-ups, of random data that does not come from the cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

Work = Callable[[], object]
_WARM_UPS, _SAMPLES = 3, 20
_LEAST_S, _MOST_S = 0.01, 1.0
"""Work of one sample where the cache is not flushed, and of all samples."""
_FLUSH_NBYTES = 256 << 20


class Timer:
    """``small``: few samples, for runs that only show that the code works."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self._device, self._small = device, small
        self._flushed = torch.empty((1 << 20) if small else _FLUSH_NBYTES, dtype=torch.uint8, device=device)

    def median_s(self, work: Work, *, flush: bool = False) -> float:
        """Seconds of one call. ``flush``: the device's cache is written over before each; one call is one sample."""
        self.synchronize()
        for _ in range(1 if self._small else _WARM_UPS):
            work()
        once_s = self._sample(work, 1)
        calls = 1 if flush or self._small else max(1, min(1000, int(_LEAST_S / max(once_s, 1e-7))))
        samples = 3 if self._small else max(5, min(_SAMPLES, int(_MOST_S / max(once_s * calls, 1e-7))))
        return statistics.median(self._sample(work, calls, flush=flush) for _ in range(samples))

    def launch_s(self, work: Work) -> float:
        """Seconds of the host for one call, of few enough that it need not wait for the device."""
        self.synchronize()
        started_s = time.perf_counter()
        for _ in range(_SAMPLES):
            work()
        seconds = (time.perf_counter() - started_s) / _SAMPLES
        self.synchronize()
        return seconds

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _sample(self, work: Work, calls: int, *, flush: bool = False) -> float:
        if flush:
            self._flushed.fill_(1)
        if self._device.type != "cuda":
            started_s = time.perf_counter()
            for _ in range(calls):
                work()
            return (time.perf_counter() - started_s) / calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls
