"""The machine's free memory (within container limits), cores, GPU and bfloat16 support.

Reads files, and asks the CUDA driver where there is one; torch is not imported, because that takes seconds.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import platform
import re
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_capability import Capability, problem_with_bfloat16
from mmserve.model_backend.platforms.cpu.library import levels
from mmserve.runtime.cpu import topology
from mmserve.runtime.memory import cgroup
from mmserve.supervisor.startup import cuda_driver
from mmserve.supervisor.startup.cuda_driver import Gpus

_DESCRIPTORS = 1 << 16
_TILES = "amx"
"""The level of kernels that has them."""
_STDERR = 2
_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")
"""They may exist without a GPU, for instance in a container that was given the driver only."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Machine:
    """``memory_bytes``: free for new processes now. ``limited_by``: the machine or the container."""

    memory_bytes: int
    limited_by: str
    has_cuda: bool
    fast_bfloat16: bool
    num_cores: int = 1
    """Physical cores that this process may use, by affinity mask and container quota."""
    cuda_problem: str = ""
    """Why CUDA cannot be used, in words; empty if it can."""
    oldest_gpu: Capability | None = None
    """The lowest compute capability of its GPUs; None: it has none."""
    has_tiles: bool = False
    """Its fastest kernels multiply bfloat16 in tile registers (AMX): its CPU has them, and its system lets us use
    them."""

    def processor(self, deployment: Deployment) -> str:
        """What computes, as far as kinds of it compute other numbers (``platforms/cpu/library/levels``)."""
        if deployment.device == "cuda":
            return f"GPU {'.'.join(map(str, self.oldest_gpu or ()))}"
        in_tiles = (
            deployment.dtype == "bfloat16" and self.has_tiles and deployment.config.kernel_level in ("auto", _TILES)
        )
        return f"{platform.machine()}{', products in tiles' if in_tiles else ''}"


def look() -> Machine:
    """This machine now."""
    memory_bytes, limited_by = free_memory()
    gpus = _gpus()
    has_cuda, bfloat16 = not gpus.problem, _has_flag("avx512_bf16|amx_bf16")
    cores, tiles = num_cores(), levels.of_this_cpu()[0].name == _TILES
    return Machine(memory_bytes, limited_by, has_cuda, bfloat16, cores, gpus.problem, gpus.oldest, tiles)


def free_memory() -> tuple[int, str]:
    """Bytes that are free for new processes now, and what limits them, in words."""
    free = psutil.virtual_memory().available
    in_groups = min((group.left_nbytes for group in cgroup.memory_groups()), default=free)
    return (in_groups, "this container") if in_groups < free else (free, "this machine")


def open_standard_descriptors() -> None:
    """Give this process and its children a stdin, stdout and stderr if it was started without: another file would be
    opened under the same number, and written to."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def allow_descriptors() -> None:
    """Raise the limit of open files for this process and its children. The usual 1,024 is too low: a worker needs one
    descriptor a request, the cache server two for each thread of each worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def num_cores(root: Path = cgroup.ROOT, own: Path = cgroup.OWN, system: Path = topology.SYSTEM) -> int:
    """Physical cores of the affinity mask, or fewer where a cgroup's quota gives less time; at least one."""
    quotas = filter(None, map(_quota_cores, cgroup.directories(root, own)))
    return max(1, min([len(topology.cores(os.sched_getaffinity(0), system)), *map(round, quotas)]))


def _quota_cores(directory: Path) -> float | None:
    """CPU quota of a cgroup (version 2 or 1) in cores; None without a quota."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota_us, period_us = map(int, " ".join((directory / name).read_text() for name in names).split())
        except (OSError, ValueError):
            # No such cgroup, or "max".
            continue
        return quota_us / period_us if quota_us > 0 else None
    return None


def _gpus() -> Gpus:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return Gpus(0, "CUDA_VISIBLE_DEVICES hides all GPUs")
    if not any(Path(path).exists() for path in _DRIVER_FILES):
        return Gpus(0, "there is no NVIDIA driver")
    if not _torch_has_cuda():
        return Gpus(0, "this torch is a CPU build")
    found = cuda_driver.ask_in_child()
    if found.problem:
        logger.warning("%s, although a driver is installed", found.problem)
    elif problem := problem_with_bfloat16(found.oldest):
        logger.warning("%s", problem)
    return found


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.exists() and re.search(r"^cuda\b[^=]*= *['\"]", version.read_text(), re.MULTILINE) is not None


def _has_flag(names: str) -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(rf"\b({names})\b", flags) is not None
