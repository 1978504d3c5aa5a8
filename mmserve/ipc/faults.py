"""One fault on purpose in a process's next unit of work, for drills against servers with ``--fault-injection``.

A unit of work is one message, one step, one call, one batch or one page: each process has one place where its next unit
begins. The drill arms a fault there by a byte in a file of the run directory, which the process has mapped. So nothing
listens, only the server's own user can do it, and a process without the option pays for reading one byte.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Literal, get_args

from mmserve.runtime.memory.mapped_file import map_file

InjectedFault = Literal["error", "memory", "slow"]
"""error: an exception. memory: a MemoryError. slow: SLOW_S pass before the unit begins."""
SLOW_S = 2.0
_KINDS: tuple[InjectedFault, ...] = get_args(InjectedFault)
logger = logging.getLogger(__name__)


class InjectedError(Exception):
    """Raised for the fault ``error``."""


class FaultPoint:
    """The place where one process begins its units of work. Thread-safe."""

    def __init__(self, path: Path | None) -> None:
        """``path``: the process's file, made if needed; None: no fault ever. Raises OSError if the disk is full."""
        self._armed = bytearray(1) if path is None else map_file(path, 1)
        self._armed[0] = 0  # a fault that was meant for the predecessor
        self._lock = threading.Lock()

    def pass_through(self) -> None:
        """Call it at the beginning of each unit of work. Has the armed fault, if there is one, and disarms it."""
        if self._armed[0]:
            self._strike()

    def _strike(self) -> None:
        with self._lock:
            number, self._armed[0] = self._armed[0], 0
        if not 0 < number <= len(_KINDS):
            return
        kind = _KINDS[number - 1]
        logger.warning("injected fault: %s", kind)
        match kind:
            case "error":
                raise InjectedError("injected by a drill")
            case "memory":
                raise MemoryError("injected by a drill")
            case "slow":
                time.sleep(SLOW_S)


NO_FAULTS = FaultPoint(None)


def arm(path: Path, kind: InjectedFault) -> None:
    """Let the process have the fault in its next unit of work. Raises FileNotFoundError without --fault-injection."""
    _write(path, 1 + _KINDS.index(kind))


def disarm(path: Path) -> None:
    """Take back a fault that the process has not had. Raises FileNotFoundError."""
    _write(path, 0)


def is_armed(path: Path) -> bool:
    """False once the process has had the fault. Raises FileNotFoundError."""
    return path.read_bytes() != b"\0"


def _write(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.write(bytes([number]))
