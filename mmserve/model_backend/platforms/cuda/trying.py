"""How kernels are tried on a GPU before they serve anybody, and what is said of those that fail."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import triton

from mmserve.runtime.errors import shortened

KERNEL_ERRORS = (
    *(RuntimeError, OSError, triton.TritonError),  # no compiler, no driver, a GPU that Triton does not know
    *(subprocess.SubprocessError, ImportError),  # a compiler without Python's headers, or what it has made
    *(AttributeError, ValueError),  # torch lacks the function, or refuses
)
"""Of launching kernels and torch's products on a GPU that may not have what they need."""
_MOST_CHARS = 200


def problem_of(trial: Callable[[], str]) -> str:
    """That the self-test failed, if ``trial`` says what is wrong or raises an error; else empty."""
    try:
        found = trial()
    except KERNEL_ERRORS as error:
        found = f"{type(error).__name__}: {in_short(error)}"
    return f"its self-test failed ({found})" if found else ""


def in_short(error: Exception) -> str:
    """In one line."""
    return shortened(" ".join(str(error).split()), _MOST_CHARS)
