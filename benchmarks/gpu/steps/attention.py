"""Step 4: attention alone: each backend in decode steps and prompts, beside torch's on contiguous keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped
from benchmarks.gpu.rates.timing import Timer

_HEADS = {"8B": (32, 8, 128), "LLaVA-1.5": (32, 32, 128), "Qwen2.5-1.5B": (12, 2, 128)}
"""(query heads, KV heads, dim)."""
_SMALL_HEADS = {"8B": (4, 2, 64)}
_BATCHES, _CONTEXTS = (1, 8, 64, 256), (128, 1024, 8192)
_PROMPTS = (512, 2048, 8192)
_FLASHINFER = "FlashInferAttention"
_MOST_NBYTES = 12 << 30
"""Of keys and values of one layer."""


def run(checks: Checks, settings: Settings) -> None:
    checks.run("imports", lambda: _imports(settings))
    if not (found := checks.figures("imports")):
        return
    for model, heads in (_SMALL_HEADS if settings.small else _HEADS).items():
        for backend in found["backends"]:
            for batch, context in _decodes(settings, heads):
                name = f"{backend}, {model}, decode {batch} x {context}"
                checks.run(name, partial(_decode, settings, backend, heads, batch, context))
            for tokens in (32,) if settings.small else _PROMPTS:
                name = f"{backend}, {model}, prompt of {tokens}"
                checks.run(name, partial(_prompt, settings, backend, heads, tokens))
        for tokens in (32,) if settings.small else _PROMPTS:
            checks.run(f"SDPA, {model}, prompt of {tokens}", partial(_contiguous, settings, heads, tokens))
    checks.run("FlexAttention, 8B, prompt of 8192", partial(_flex, settings))


def _decodes(settings: Settings, heads: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
    if settings.small:
        yield 2, 40
        return
    for batch in _BATCHES:
        for context in _CONTEXTS:
            if batch * context * 4 * heads[1] * heads[2] <= _MOST_NBYTES:
                yield batch, context


def _imports(settings: Settings) -> Figures:
    """The backends by name: that of the platform, torch's, and FlashInfer's where it is installed."""
    platform = _platform(settings)
    names = {type(platform.attention(_spec((4, 2, 64)), platform.dtype)).__name__, "SdpaAttention"}
    if not settings.small and find_spec("flashinfer") is not None:
        names.add(_FLASHINFER)
    return {"backends": sorted(names)}


def _platform(settings: Settings, attention: str = "auto") -> Any:
    from benchmarks.gpu.rates.device import device_of
    from mmserve.model_backend.platforms.device import platform_for

    device = device_of(settings)
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    return platform_for(device.type, dtype, attention=attention)  # type: ignore[arg-type]


def _spec(heads: tuple[int, int, int]) -> Any:
    from mmserve.model_backend.attention.interface import AttentionSpec

    return AttentionSpec(*heads)


def _decode(settings: Settings, backend: str, heads: tuple[int, int, int], batch: int, context: int) -> Figures:
    """Microseconds of a layer, and bytes of keys and values a second."""
    from benchmarks.gpu.kernels.attention import Chunk

    seconds = _seconds(settings, backend, heads, [Chunk(context - 1)] * batch)
    nbytes = batch * context * 2 * heads[1] * heads[2] * _platform(settings).dtype.itemsize
    return {"us": 1e6 * seconds, "KV bytes/s": nbytes / seconds}


def _prompt(settings: Settings, backend: str, heads: tuple[int, int, int], tokens: int) -> Figures:
    from benchmarks.gpu.kernels.attention import Chunk

    return _rate(_seconds(settings, backend, heads, [Chunk(0, tokens)]), heads, tokens)


def _rate(seconds: float, heads: tuple[int, int, int], tokens: int) -> Figures:
    return {"us": 1e6 * seconds, "operations/s": 2 * heads[0] * heads[2] * tokens**2 / seconds}


def _seconds(settings: Settings, name: str, heads: tuple[int, int, int], chunks: Any) -> float:
    from benchmarks.gpu.kernels.attention import Layout
    from mmserve.model_backend.attention.interface import StepLimits
    from mmserve.model_backend.attention.sdpa import SdpaAttention

    platform = _platform(settings, "flashinfer" if name == _FLASHINFER else "auto")
    spec = _spec(heads)
    backend: Any = platform.attention(spec, platform.dtype)
    if type(backend).__name__ != name:
        backend = SdpaAttention(spec, platform.dtype, platform.device)
    block_tokens = backend.block_sizes[0]
    layout = Layout(chunks, block_tokens, settings.seed)
    cache = _random(settings, platform, *backend.kv_shape(layout.num_blocks, block_tokens))
    rows = sum(chunk.count for chunk in chunks)
    limits = StepLimits(rows, len(chunks), layout.tables.shape[1], block_tokens)
    metadata = backend.builder(limits).build(layout.step(None))
    fused = _random(settings, platform, rows, heads[0] + 2 * heads[1], heads[2])
    q, kv = fused[:, : heads[0]], fused[:, heads[0] :].unflatten(1, (2, heads[1]))
    timer = Timer(platform.device, small=settings.small)
    with torch.inference_mode():
        return timer.median_s(lambda: backend.forward(q, kv, cache, metadata), flush=not settings.small)


def _random(settings: Settings, platform: Any, *shape: int) -> torch.Tensor:
    generator = torch.Generator(platform.device).manual_seed(settings.seed)
    return torch.randn(shape, dtype=platform.dtype, device=platform.device, generator=generator)


def _contiguous(settings: Settings, heads: tuple[int, int, int], tokens: int) -> Figures:
    """What torch's own kernels reach without pages."""
    platform = _platform(settings)
    q, k, v = (_random(settings, platform, 1, count, tokens, heads[2]) for count in (heads[0], heads[1], heads[1]))
    attend = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True)
    with torch.inference_mode():
        return _rate(Timer(platform.device, small=settings.small).median_s(attend), heads, tokens)


def _flex(settings: Settings) -> Figures:
    """Compiled; on contiguous keys and values."""
    if settings.small:
        raise Skipped("compiles for a GPU alone here")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    platform, heads, tokens = _platform(settings), _HEADS["8B"], _PROMPTS[-1]
    q, k, v = (_random(settings, platform, 1, count, tokens, heads[2]) for count in (heads[0], heads[1], heads[1]))
    mask = create_block_mask(lambda b, h, row, key: row >= key, None, None, tokens, tokens, device=str(platform.device))
    attend = partial(torch.compile(flex_attention), q, k, v, block_mask=mask, enable_gqa=True)
    with torch.inference_mode():
        return _rate(Timer(platform.device, small=False).median_s(attend), heads, tokens)
