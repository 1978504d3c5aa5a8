"""The machine's free memory (within container limits), cores, GPU and bfloat16 support.

Reads files, and asks the CUDA driver where there is one; torch is not imported, because that takes seconds.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

from mmserve.supervisor.startup import cuda_driver

_CGROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Version 2, version 1: limit and use, in bytes."""
_DESCRIPTORS = 1 << 16
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
    """Cores that this process may use, by affinity mask and container quota."""
    cuda_problem: str = ""
    """Why CUDA cannot be used, in words; empty if it can."""


def look() -> Machine:
    """This machine now."""
    memory_bytes, limited_by = psutil.virtual_memory().available, "this machine"
    limit = container_memory_bytes()
    if limit is not None and limit < memory_bytes:
        memory_bytes, limited_by = limit, "this container"
    problem = _cuda_problem()
    return Machine(memory_bytes, limited_by, not problem, _has_fast_bfloat16(), num_cores(), problem)


def allow_descriptors() -> None:
    """Raise the limit of open files for this process and its children. The usual 1,024 is too low: a worker needs one
    descriptor a request, the cache server two for each thread of each worker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def num_cores(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores of the affinity mask, or fewer where a cgroup's quota gives less time; at least one."""
    quotas = filter(None, map(_quota_cores, _directories(root, own)))
    return max(1, min([len(os.sched_getaffinity(0)), *map(round, quotas)]))


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


def container_memory_bytes(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int | None:
    """Free bytes in the tightest enclosing cgroup; None without a limit. Inactive page cache counts as free."""
    left = [_left(directory, *files) for directory in _directories(root, own) for files in _LIMIT_FILES]
    return min((nbytes for nbytes in left if nbytes is not None), default=None)


def _directories(root: Path, own: Path) -> set[Path]:
    """Cgroup directories that contain this process; inside a container the path is relative to the root."""
    found = {root, root / "memory", root / "cpu"}
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if {"", "memory", "cpu"} & set(controllers.split(",")):
            leaf = root / controllers / path.lstrip("/")
            found.update([leaf, *(parent for parent in leaf.parents if root in parent.parents)])
    return found


def _left(directory: Path, limit_file: str, usage_file: str) -> int | None:
    try:
        limit = int((directory / limit_file).read_text())
        used = int((directory / usage_file).read_text())
        cached = re.search(r"^inactive_file (\d+)$", (directory / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        # No such cgroup, or "max".
        return None
    return max(0, limit - used + (int(cached[1]) if cached else 0))


def _cuda_problem() -> str:
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all GPUs"
    if not any(Path(path).exists() for path in _DRIVER_FILES):
        return "there is no NVIDIA driver"
    if not _torch_has_cuda():
        return "this torch is a CPU build"
    if problem := cuda_driver.ask_in_child().problem:
        logger.warning("%s, although a driver is installed", problem)
    return problem


def _torch_has_cuda() -> bool:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    return version.exists() and re.search(r"^cuda\b[^=]*= *['\"]", version.read_text(), re.MULTILINE) is not None


def _has_fast_bfloat16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return re.search(r"\b(avx512_bf16|amx_bf16)\b", flags) is not None
