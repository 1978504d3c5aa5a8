"""Decides from heartbeats which processes are stuck. Pure: the caller measures the time.

A process is stuck if its heartbeats stop (``silent``), or if it has work and none of it gets done (``stalled``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mmserve.monitoring.health.heartbeat import Beat


@dataclass(frozen=True)
class Watched:
    """A process that serves. One that is starting is not watched."""

    name: str
    group: str
    """Processes of one group wait for each other: the router for the ranks, a rank for the others."""
    ready_s: float
    """When it became ready."""
    beat: Beat | None
    """None: it has not beaten yet."""


def stuck_processes(
    processes: Iterable[Watched],
    elapsed_s: Callable[[float], float],
    *,
    silent_s: float,
    stalled_s: float,
    stalled_from_s: float = -math.inf,
) -> dict[str, str]:
    """Name -> reason, of each process that is silent for more than ``silent_s`` or stalled for more than ``stalled_s``.

    ``elapsed_s``: the seconds since a time. A stall is counted from ``stalled_from_s`` at the earliest. A process that
    waits for another one of its group is not stalled while that one makes progress.
    """
    processes = list(processes)
    stuck = {}
    for process in processes:
        beat = process.beat
        silence_s = elapsed_s(max(process.ready_s, beat.beat_s) if beat else process.ready_s)
        if silence_s > silent_s:
            stuck[process.name] = f"no heartbeat for {silence_s:.0f} s"
        elif beat and beat.busy:
            stall_s = elapsed_s(max(process.ready_s, _progress_s(processes, process.group), stalled_from_s))
            if stall_s > stalled_s:
                stuck[process.name] = f"busy without progress for {stall_s:.0f} s"
    return stuck


def _progress_s(processes: Iterable[Watched], group: str) -> float:
    """The last progress of any busy process of the group. Idle ones make none, whatever their heartbeats say."""
    return max(
        (each.beat.progress_s for each in processes if each.group == group and each.beat and each.beat.busy),
        default=-math.inf,
    )
