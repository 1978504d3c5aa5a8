"""Asks the CUDA driver how many GPUs this process may use, and how old they are, without torch.

The driver is asked in a child process, so that the supervisor does not keep the driver's libraries and threads. As a
program (``python -m mmserve.supervisor.startup.cuda_driver``) it prints the answer as JSON.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from mmserve.config.resolved.gpu_capability import Capability

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
"""cudaErrorNoDevice, from cuInit."""
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


class Gpus(NamedTuple):
    num_gpus: int
    problem: str
    """Why there are none; empty if there are some."""
    oldest: Capability | None = None
    """The lowest compute capability among them; None: there are none."""


def ask_in_child(within_s: float = 60.0) -> Gpus:
    """Never raises: a driver that crashes or hangs has no GPUs to offer."""
    command = [sys.executable, "-m", __name__]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Gpus(0, f"the CUDA driver does not answer ({error})")
    try:
        count, problem, oldest = json.loads(done.stdout)
    except ValueError:
        return Gpus(0, f"the CUDA driver crashes (exit code {done.returncode})")
    return Gpus(count, problem, oldest and (oldest[0], oldest[1]))


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
    if not count.value:
        return Gpus(0, "the CUDA driver sees no GPU")
    found = [_capability(driver, index) for index in range(count.value)]
    known = [capability for capability in found if capability is not None]
    if len(known) < len(found):
        return Gpus(0, "the CUDA driver cannot describe its GPUs")
    return Gpus(count.value, "", min(known))


def _capability(driver: Any, index: int) -> Capability | None:
    """Of this GPU; None: the driver refuses to say."""
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    for number, attribute in ((major, _MAJOR), (minor, _MINOR)):
        if driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, device):
            return None
    return major.value, minor.value


if __name__ == "__main__":
    print(json.dumps(ask()))
