"""Compiles the C++ kernels in a child process while the servers start, so that ranks wait less for them.

The builder is named as text, like the server packages, so that the supervisor does not import it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from mmserve.config.resolved.deployment import Deployment

_BUILDER = "mmserve.model_backend.platforms.cpu.library.build"


@contextlib.contextmanager
def building(deployment: Deployment) -> Iterator[None]:
    """Runs the build within the context, if this deployment uses the kernels. Ends it on exit."""
    if deployment.device != "cpu" or deployment.activation_dtype != "float32":
        yield
        return
    command = [sys.executable, "-m", _BUILDER, deployment.config.log_level, deployment.config.kernel_level]
    builder = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    waiter = threading.Thread(target=builder.wait, name="kernels", daemon=True)  # reaps the process when it ends
    waiter.start()
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            if waiter.is_alive():
                os.killpg(builder.pid, signal.SIGTERM)
        waiter.join()
