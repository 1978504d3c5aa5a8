"""Collector for the memory of every process of the server and of its control groups, read at each scrape."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import psutil
from prometheus_client.core import GaugeMetricFamily

from mmserve.monitoring.metrics.names import PREFIX
from mmserve.runtime.memory.cgroup import memory_groups

_TITLE = "mmserve: "


def _groups() -> Iterator[GaugeMetricFamily]:
    """Of the control group with the smallest share left; nothing without a limit."""
    groups = memory_groups()
    if groups:
        least = min(groups, key=lambda group: group.left_nbytes / max(1, group.limit_nbytes))
        limit, left = PREFIX + "container_memory_limit_bytes", PREFIX + "container_memory_left_bytes"
        yield GaugeMetricFamily(limit, "Memory limit of this container", value=least.limit_nbytes)
        yield GaugeMetricFamily(left, "Of it not used, inactive page cache included", value=least.left_nbytes)


class Memory(NamedTuple):
    """Resident memory of a process, in bytes. ``pss``: shared pages by share."""

    process: str
    """Its title."""
    rss: int
    pss: int


class ProcessMemory:
    """Prometheus collector over the process tree of ``root_pid``. The label ``process`` is the process title."""

    def __init__(self, root_pid: int) -> None:
        self._root_pid = root_pid

    def collect(self) -> Iterator[GaugeMetricFamily]:
        rss = GaugeMetricFamily(
            PREFIX + "process_rss_bytes", "Resident memory, shared pages in full", labels=("process",)
        )
        pss = GaugeMetricFamily(
            PREFIX + "process_pss_bytes", "Resident memory, shared pages by share", labels=("process",)
        )
        for memory in self.read():
            rss.add_metric((memory.process,), memory.rss)
            pss.add_metric((memory.process,), memory.pss)
        yield rss
        yield pss
        yield from _groups()

    def read(self) -> Iterator[Memory]:
        """Of each process now. Takes milliseconds for one with much memory."""
        for process in self._tree():
            # A process may end at any time, or deny access.
            with contextlib.suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith(_TITLE):
                    memory = process.memory_full_info()
                    # The supervisor's title also has the model and the address, in parentheses.
                    yield Memory(title.removeprefix(_TITLE).split(" (")[0].strip(), memory.rss, memory.pss)

    def _tree(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._root_pid)
            return [root, *root.children(recursive=True)]
        return []
