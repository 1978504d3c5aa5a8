"""How many GPUs Ray gives each server of ``mmserve serve --replicas``. No Ray in it."""

from __future__ import annotations

from mmserve.config.fields import Device
from mmserve.runtime.errors import StartupError


def gpus_of_each(device: Device, tp: int, servers: int, there: float) -> int:
    """One a rank, if servers run on GPUs. ``servers``: the fewest that there will be; ``there``: all of Ray's GPUs.

    Ray gives a server no GPU that it has not asked for, and waits without end for more than there are: this raises
    StartupError.
    """
    if device == "cpu" or (device == "auto" and not there):
        return 0
    if servers * tp > there:
        raise StartupError(
            f"--replicas: {servers} servers with --tp {tp} need {servers * tp} GPUs, and Ray knows of {there:g}; "
            "ask for fewer, or for --device cpu"
        )
    return tp
