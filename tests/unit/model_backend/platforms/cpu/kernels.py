"""Helpers of the tests of the C++ kernels."""

from __future__ import annotations

import ctypes

import pytest
import torch

from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.model_backend.platforms.cpu.threads import set_threads

# Without a compiler mmserve computes with torch, and the parity tests of the model check that. With one, kernels that
# cannot be built or fail their self-test are failures, not skips.
needs_compiler = pytest.mark.skipif(
    not compiler.compilers(),
    reason="no C++ compiler on this machine: torch computes, which every other test of the model then checks",
)


def kernels() -> ctypes.CDLL:
    """The kernels, with three threads."""
    found = verified_kernels("auto")
    assert found is not None, "the kernels could not be built, or failed their self-test"
    set_threads(found, 3)
    return found


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
