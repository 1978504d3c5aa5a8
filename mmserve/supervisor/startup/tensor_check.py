"""Whether a checkpoint has the tensors of its model, found in a child process: the supervisor does not import torch."""

from __future__ import annotations

import subprocess
import sys

from mmserve.runtime.errors import StartupError

_CHECKER = "mmserve.model_backend.loader.check_tensors"


def check_tensors(directory: str) -> None:
    """Raises StartupError that names a tensor which is missing, left over or of another shape or dtype.

    Of a model that mmserve's own code computes, and that is not quantized.
    """
    command = [sys.executable, "-m", _CHECKER, directory]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
        raise StartupError(lines[-1])
