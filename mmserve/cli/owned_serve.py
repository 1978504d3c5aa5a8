"""``mmserve serve`` for a program that starts a server of its own: ``python -m mmserve.cli.owned_serve FD [flags]``.

FD is the read end of a pipe whose write end the program keeps open. When the program ends, also by SIGKILL, the pipe
is at its end and the server stops.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence

from mmserve.cli.main import main as run_command


def main(argv: Sequence[str]) -> int:
    """Serve until a signal or the end of the pipe; the exit code."""
    fd = int(argv[0])
    os.set_inheritable(fd, False)
    threading.Thread(target=_stop_at_end, args=(fd,), name="owner", daemon=True).start()
    return run_command(["serve", *argv[1:]])


def _stop_at_end(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
