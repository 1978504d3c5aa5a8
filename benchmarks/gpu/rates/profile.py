"""What the device does in some steps: kernels, idle time, and which kernels take the most time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_NAMED = 15
_NAME_CHARS = 90


def profiled(work: Callable[[], object], steps: int, device: torch.device) -> dict[str, Any]:
    """``work`` makes so many steps. Idle: part of the time between the first kernel and the end of the last."""
    activities = [ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU]
    with profile(activities=activities) as found:
        work()
    kind = DeviceType.CUDA if device.type == "cuda" else DeviceType.CPU
    events = [event for event in found.events() or () if event.device_type == kind and event.time_range]
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    us: Counter[str] = Counter()
    for event, (start, end) in zip(events, spans, strict=True):
        us[event.name[:_NAME_CHARS]] += end - start
    return {
        "kernels a step": len(events) / steps,
        "idle of the device": idle_part(spans),
        "us a step of kernels": {name: time / steps for name, time in us.most_common(_NAMED)},
    }


def idle_part(spans: Iterable[tuple[float, float]]) -> float:
    """Of the time from the first start to the last end, the part that no span covers."""
    ordered = sorted(spans)
    if not ordered:
        return 1.0
    first, covered_to = ordered[0][0], ordered[0][0]
    busy = 0.0
    for start, end in ordered:
        busy += max(0.0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return 1.0 - busy / (covered_to - first) if covered_to > first else 0.0
