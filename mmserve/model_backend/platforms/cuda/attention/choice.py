"""Chooses the attention of a GPU (``--attention-backend``): Triton's kernels where they work, torch's otherwise."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch

from mmserve.config.fields import AttentionChoice
from mmserve.config.resolved.gpu_capability import AMPERE, Capability, in_words
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.runtime.errors import StartupError

if TYPE_CHECKING:
    from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention

logger = logging.getLogger(__name__)


class Gpu(NamedTuple):
    """What the sizes of kernels depend on."""

    device: torch.device
    capability: Capability
    processors: int
    shared_bytes: int
    """Memory on a processor that one program may use."""

    @classmethod
    def of(cls, device: torch.device) -> Gpu:
        facts = torch.cuda.get_device_properties(device)
        shared_bytes: int = facts.shared_memory_per_block_optin  # type: ignore[attr-defined]
        return cls(device, (facts.major, facts.minor), facts.multi_processor_count, shared_bytes)


def triton_attention(
    choice: AttentionChoice, spec: AttentionSpec, dtype: torch.dtype, kv_dtype: torch.dtype, gpu: Gpu
) -> TritonAttention | None:
    """The backend, tested on this GPU; None: torch is to compute.

    Raises StartupError if the user chose Triton and it does not work.
    """
    if not offers_triton(choice, gpu):
        return None
    from mmserve.model_backend.platforms.cuda.attention.self_test import checked_attention

    found = checked_attention(spec, dtype, kv_dtype, gpu.device, gpu.processors, gpu.shared_bytes)
    if not isinstance(found, str):
        return found
    _refuse(choice, found)
    return None


def offers_triton(choice: AttentionChoice, gpu: Gpu) -> bool:
    """True if kernels may be tried. Raises StartupError if the user chose Triton and it is not there."""
    if choice == "torch":
        return False
    problem = None
    if gpu.capability < AMPERE:
        problem = (
            f"this GPU's compute capability is {in_words(gpu.capability)}, and the kernels need {in_words(AMPERE)}"
        )
    elif find_spec("triton") is None:
        problem = "Triton is not installed (a CUDA build of torch for Linux brings it)"
    if problem is not None:
        _refuse(choice, problem)
    return problem is None


def _refuse(choice: AttentionChoice, problem: str) -> None:
    if choice == "triton":
        raise StartupError(f"--attention-backend triton: {problem}; choose torch, or leave the option out")
    logger.warning("attention is computed by torch, which is slower than Triton's kernels: %s", problem)
