"""The control groups (containers) that this process is in, and what their memory limits leave. Versions 1 and 2."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
_MEMORY_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Version 2, version 1: limit and use, in bytes."""
_INACTIVE = re.compile(r"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)
"""Version 1 counts the groups below only in ``total_inactive_file``, which comes after ``inactive_file``."""
_NO_LIMIT_NBYTES = 1 << 60
"""Version 1 says that there is no limit with a number from about here up."""


@dataclass(frozen=True)
class GroupMemory:
    """The memory of one control group that has a limit."""

    limit_nbytes: int
    left_nbytes: int
    """Inactive page cache counts as free."""


def directories(root: Path = ROOT, own: Path = OWN) -> set[Path]:
    """Directories of the groups that contain this process; inside a container the path is relative to the root."""
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


def memory_groups(root: Path = ROOT, own: Path = OWN) -> list[GroupMemory]:
    """The memory of each group with a limit that contains this process, now."""
    return [found for group in limited_groups(root, own) if (found := group.read()) is not None]


def limited_groups(root: Path = ROOT, own: Path = OWN) -> Sequence[MemoryLimit]:
    """The memory limits of all groups that contain this process."""
    limits = [MemoryLimit(directory, *files) for directory in directories(root, own) for files in _MEMORY_FILES]
    return [limit for limit in limits if limit.read() is not None]


class MemoryLimit:
    """One group's memory limit, to be read again and again."""

    def __init__(self, directory: Path, limit_file: str, usage_file: str) -> None:
        self._limit = directory / limit_file
        self._usage = directory / usage_file
        self._stat = directory / "memory.stat"

    def read(self, enough: Callable[[int], int] = lambda limit: limit) -> GroupMemory | None:
        """Limit and memory left now; None without a limit.

        ``enough(limit)``: if so many bytes are left without it, the page cache is not counted: for that the kernel adds
        up numbers of all processors.
        """
        try:
            limit, used = int(self._limit.read_text()), int(self._usage.read_text())
            cached = self._inactive_nbytes() if limit - used < enough(limit) else 0
        except (OSError, ValueError):
            # No such group, or "max".
            return None
        return GroupMemory(limit, max(0, limit - used + cached)) if limit < _NO_LIMIT_NBYTES else None

    def _inactive_nbytes(self) -> int:
        return max(map(int, _INACTIVE.findall(self._stat.read_text())), default=0)
