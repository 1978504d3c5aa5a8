"""Asks the CUDA driver how many GPUs this process may use, without torch.

The driver is asked in a child process, so that the supervisor does not keep the driver's libraries and threads. As a
program (``python -m mmserve.supervisor.startup.cuda_driver``) it prints the answer.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
"""cudaErrorNoDevice, from cuInit."""


class Gpus(NamedTuple):
    num_gpus: int
    problem: str
    """Why there are none; empty if there are some."""


def ask_in_child(within_s: float = 60.0) -> Gpus:
    """Never raises: a driver that crashes or hangs has no GPUs to offer."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Gpus(0, f"the CUDA driver does not answer ({error})")
    count, _, problem = done.stdout.strip().partition(" ")
    if done.returncode or not count.isdigit():
        return Gpus(0, f"the CUDA driver crashes (exit code {done.returncode})")
    return Gpus(int(count), problem)


def ask(load: Callable[[str], Any] = ctypes.CDLL) -> Gpus:
    """In this process. The driver obeys CUDA_VISIBLE_DEVICES. ``load``: opens a shared library."""
    try:
        driver = load(_LIBRARY)
    except OSError as error:
        return Gpus(0, f"the CUDA driver's library cannot be loaded ({error})")
    if code := driver.cuInit(0):
        reason = "sees no GPU" if code == _NO_DEVICE else f"cannot be started (CUDA error {code})"
        return Gpus(0, f"the CUDA driver {reason}")
    count = ctypes.c_int()
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return Gpus(0, f"the CUDA driver cannot count its GPUs (CUDA error {code})")
    return Gpus(count.value, "" if count.value else "the CUDA driver sees no GPU")


if __name__ == "__main__":
    print(*ask())
