"""Has the C++ kernels built while everything else starts: who needs them waits for the rest of it only.

Knows no kernel: the module that builds them is named as text, as all server packages are here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

from mmserve.config.deployment import Deployment

_BUILDER = "mmserve.model_backend.platforms.cpu.build"


@contextlib.contextmanager
def building(deployment: Deployment) -> Iterator[None]:
    """Within, where kernels would be used. What is not done at the end is given up."""
    if deployment.device != "cpu" or deployment.dtype != "float32":
        yield
        return
    command = [sys.executable, "-m", _BUILDER, deployment.config.log_level]
    builder = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    waiting = threading.Thread(target=builder.wait, name="kernels", daemon=True)  # no zombie is left meanwhile
    waiting.start()
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            if waiting.is_alive():
                os.killpg(builder.pid, signal.SIGTERM)
        waiting.join()
