"""How many GPUs Ray gives each server of ``mmserve serve --replicas``. No Ray in it."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.config.fields import Device
from mmserve.runtime.errors import StartupError


def gpus_of_each(device: Device, tp: int, servers: int, machines: Sequence[float]) -> int:
    """One a rank, if servers run on GPUs. ``servers``: the fewest that there will be; ``machines``: GPUs of each
    machine, as Ray counts them. All ranks of a server are on one machine.

    Ray gives a server no GPU that it has not asked for, and waits without end for more than there are: this raises
    StartupError.
    """
    if device == "cpu" or (device == "auto" and not any(machines)):
        return 0
    if sum(int(gpus) // tp for gpus in machines) < servers:
        there = " + ".join(f"{gpus:g}" for gpus in machines if gpus) or "none"
        raise StartupError(
            f"--replicas: {servers} servers with --tp {tp} need {servers * tp} GPUs, those of a server on one machine, "
            f"and Ray knows of {there}; ask for fewer, or for --device cpu"
        )
    return tp
