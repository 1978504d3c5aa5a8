"""What a GPU can do, by its compute capability. Pure."""

from __future__ import annotations

Capability = tuple[int, int]

AMPERE: Capability = (8, 0)
"""The first that multiplies in bfloat16. mmserve's kernels and FlashInfer are for it and newer ones."""
ADA: Capability = (8, 9)
"""The first with FP8 units."""
HOPPER: Capability = (9, 0)
"""The one for which torch multiplies FP8 numbers with a scale for each block."""


def in_words(capability: Capability) -> str:
    """As NVIDIA writes it."""
    return ".".join(map(str, capability))


def problem_with_bfloat16(oldest: Capability | None) -> str:
    """Why the GPUs, of which this is the oldest, do not compute in it; empty if they do. None: it is not known."""
    if oldest is None or oldest >= AMPERE:
        return ""
    return (
        f"a GPU has compute capability {in_words(oldest)}, and bfloat16 begins with {in_words(AMPERE)}, "
        "so --dtype auto is float16"
    )
