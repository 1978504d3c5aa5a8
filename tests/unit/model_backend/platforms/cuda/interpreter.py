"""Whether kernels can run here without a GPU."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import triton
from packaging.version import Version

needs_interpreter = pytest.mark.skipif(
    not triton.knobs.runtime.interpret or Version(version("triton")) < Version("3.7.1"),
    reason="needs TRITON_INTERPRET=1 (tests/conftest.py) and Triton 3.7.1; on a GPU: tests/gpu",
)
