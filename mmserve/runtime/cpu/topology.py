"""The machine's cores: which of them share an L3 cache and a NUMA node, and which a rank computes on.

Read from ``/sys/devices/system``. A second hyper-thread of a core adds nothing to products or to reading memory, so
threads are counted by cores. A virtual machine may hide all of this; then each CPU is a core, and all share one cache.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

SYSTEM = Path("/sys/devices/system")


class Domain(NamedTuple):
    """Cores that share memory and an L3 cache."""

    node: int
    l3: int
    """The lowest number of a CPU that shares it; -1 where there is none."""


class Core(NamedTuple):
    """A physical core."""

    domain: Domain
    cpus: tuple[int, ...]
    """Its hyper-threads that this process may use, by the kernel's numbers."""


def cores(allowed: Iterable[int], system: Path = SYSTEM) -> list[Core]:
    """The cores of these CPUs. Neighbours share as much as they can."""
    left, nodes, found = set(allowed), _nodes(system), []
    while left:
        cpu = min(left)
        directory = system / f"cpu/cpu{cpu}"
        threads = left & {cpu, *_numbers(directory / "topology/thread_siblings_list")}
        left -= threads
        node = nodes.get(cpu, _number(directory / "topology/physical_package_id", 0))
        found.append(Core(Domain(node, _l3(directory)), tuple(sorted(threads))))
    return sorted(found)


def cpus_of_rank(of_machine: Sequence[Core], rank: int, size: int) -> set[int]:
    """CPUs that a rank's threads may run on: those of each domain that has a part of its share of the cores.

    So ranks are kept apart by NUMA node and L3 cache where their number allows, and the system is free to place threads
    within.
    """
    first, end = (len(of_machine) * number // size for number in (rank, rank + 1))
    domains = {core.domain for core in of_machine[first : max(end, first + 1)]}
    return {cpu for core in of_machine if core.domain in domains for cpu in core.cpus}


def _l3(directory: Path) -> int:
    for cache in sorted(directory.glob("cache/index*")):
        if _number(cache / "level", 0) == 3:
            return min(_numbers(cache / "shared_cpu_list"), default=-1)
    return -1


def _nodes(system: Path) -> dict[int, int]:
    """The NUMA node of each CPU."""
    directories = system.glob("node/node[0-9]*")
    return {cpu: int(path.name[4:]) for path in directories for cpu in _numbers(path / "cpulist")}


def _numbers(path: Path) -> list[int]:
    """Of a list as the kernel writes it: ``0-3,8,10-11``. Empty without the file."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for part in filter(None, path.read_text().strip().split(",")):
            first, _, last = part.partition("-")
            found.extend(range(int(first), int(last or first) + 1))
    return found


def _number(path: Path, default: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return default
