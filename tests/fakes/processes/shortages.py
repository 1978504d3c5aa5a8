"""Shortages: of this process's descriptors and threads, for the length of a block; of a control group's memory."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    """This process can open nothing. What it closes inside the block, it can open again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def no_more_threads() -> Iterator[None]:
    """This process can start no thread."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def cgroup(directory: Path, **files: str) -> None:
    """Files of a control group. ``memory_max`` is its file memory.max, and so on."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("memory_", "memory.").replace("cpu_", "cpu.")).write_text(text)
