"""How fast weights get from files in the page cache to a device."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from benchmarks.gpu.checks import Settings
from benchmarks.gpu.rates.device import device_of
from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.platforms.device import platform_for


def load_decoder_s(path: Path, settings: Settings) -> tuple[float, int]:
    """Seconds and bytes of a checkpoint's language model, whose files were written just before."""
    device = device_of(settings)
    platform = platform_for(device.type, "bfloat16" if device.type == "cuda" else "float32")
    spec, nbytes = load(path), [0]
    attention = platform.attention(AttentionSpec.of(spec.text, TpGroup()), platform.dtype)

    def note(done: int, total: int, unit: str) -> None:
        nbytes[0] = total

    started_s = time.perf_counter()
    decoder = load_decoder(spec, platform, attention, TpGroup(), "none", note)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started_s
    del decoder
    platform.release_cached_memory()
    return seconds, nbytes[0]
