"""Step 1: what the device can do at most: bytes, operations, launches, copies from the host."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped
from benchmarks.gpu.rates.device import device_of, generator
from benchmarks.gpu.rates.timing import Timer

COPY, PRODUCT = "copy", "product of 8192"
"""The checks that floors are computed with."""
_PRODUCTS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28_672, 4096),
    "down": (4096, 14_336),
    "head": (128_256, 4096),
}
"""[out, in] of Llama-3.1-8B."""
_ROWS = (1, 16, 64, 256, 8192)
_NODES = 100


class Probe:
    """The sizes of a run, and its device."""

    def __init__(self, settings: Settings) -> None:
        self.device = device_of(settings)
        self.small = settings.small
        self.timer = Timer(self.device, small=self.small)
        self.generator = generator(settings, self.device)

    def random(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """Normally distributed: zeros run faster than any real numbers."""
        return torch.randn(shape, device=self.device, dtype=dtype, generator=self.generator)


def run(checks: Checks, settings: Settings) -> None:
    made: list[Probe] = []

    def probe() -> Probe:
        made[:] = made or [Probe(settings)]
        return made[0]

    checks.run(COPY, lambda: copy(probe()))
    checks.run(PRODUCT, lambda: product(probe()))
    checks.run("read", lambda: _read(probe()))
    checks.run("launches", lambda: _launches(probe()))
    checks.run("graph replay", lambda: _graph(probe()))
    checks.run("host to device", lambda: _host_copies(probe()))
    checks.run("sums of ranks", lambda: _sums(probe()))
    for name, shape in _PRODUCTS.items():
        checks.run(f"products, {name}", partial(lambda shape: _products(probe(), shape, _in_bf16), shape))
    for name, shape in _PRODUCTS.items():
        checks.run(f"products in fp8, {name}", partial(lambda shape: _products(probe(), shape, _in_fp8), shape))


def copy(probe: Probe) -> Figures:
    """Bytes read and written a second."""
    sizes = (1 << 22,) if probe.small else (1 << 30, 1 << 32)
    rates = {}
    for nbytes in sizes:
        source = probe.random(nbytes // 2)
        target = torch.empty_like(source)
        seconds = probe.timer.median_s(partial(target.copy_, source))
        rates[f"bytes/s of {nbytes >> 20} MiB"] = 2 * nbytes / seconds
    return {"bytes/s": max(rates.values()), **rates}


def product(probe: Probe) -> Figures:
    """Operations a second of a large product."""
    size = 256 if probe.small else 8192
    a, b = probe.random(size, size), probe.random(size, size)
    seconds = probe.timer.median_s(partial(torch.matmul, a, b))
    return {"operations/s": 2 * size**3 / seconds, "size": size}


def _read(probe: Probe) -> Figures:
    nbytes = 1 << 22 if probe.small else 1 << 32
    source = probe.random(nbytes // 2)
    seconds = probe.timer.median_s(partial(torch.amax, source))
    return {"bytes/s": nbytes / seconds}


def _launches(probe: Probe) -> Figures:
    number = probe.random(1)
    return {"us": 1e6 * probe.timer.median_s(lambda: [number.neg_() for _ in range(_NODES)]) / _NODES}


def _graph(probe: Probe) -> Figures:
    """Cost of a node, and of a replay: slow replays were reported for some torch versions."""
    if probe.device.type != "cuda":
        raise Skipped("needs a GPU")
    number, found = probe.random(1), {}
    for nodes in (1, _NODES, 5 * _NODES):
        number.neg_()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(nodes):
                number.neg_()
        found[nodes] = 1e6 * probe.timer.median_s(graph.replay)
    per_node = (found[5 * _NODES] - found[_NODES]) / (4 * _NODES)
    return {"us a node": per_node, **{f"us of {nodes} nodes": us for nodes, us in found.items()}}


def _sums(probe: Probe) -> Figures:
    """Microseconds by size and way, of ranks with a GPU each."""
    from benchmarks.gpu.rates.sums import sums_of_gpus, sums_of_threads

    if probe.device.type != "cuda":
        found = sums_of_threads()
    elif (num_gpus := torch.cuda.device_count()) < 2:
        raise Skipped("needs two GPUs")
    else:
        found = sums_of_gpus(num_gpus)
    return {f"us of {nbytes} bytes, {way}": 1e6 * s for nbytes, ways in found.items() for way, s in ways.items()}


def _host_copies(probe: Probe) -> Figures:
    nbytes = 1 << 20 if probe.small else 1 << 28
    target, found = torch.empty(nbytes, dtype=torch.uint8, device=probe.device), {}
    pageable = torch.randint(0, 255, (nbytes,), dtype=torch.uint8)
    found["pageable bytes/s"] = nbytes / probe.timer.median_s(partial(target.copy_, pageable))
    if probe.device.type == "cuda":
        pinned = pageable.pin_memory()
        found["pinned bytes/s"] = nbytes / probe.timer.median_s(partial(target.copy_, pinned, non_blocking=True))
        back = partial(pinned.copy_, target, non_blocking=True)
        found["pinned bytes/s to the host"] = nbytes / probe.timer.median_s(back)
    return found


def _products(probe: Probe, shape: tuple[int, int], form: Callable[..., Callable[[], Any]]) -> Figures:
    """Microseconds and bytes a second of [rows, in] x [in, out]."""
    rows_of, (out, inner) = _ROWS, shape
    if probe.small:
        rows_of, (out, inner) = (1, 16), (128, 64)
    found = {}
    for rows in rows_of:
        work, nbytes = form(probe, rows, out, inner)
        seconds = probe.timer.median_s(work, flush=not probe.small)
        found[f"us of {rows} rows"] = 1e6 * seconds
        found[f"weight bytes/s of {rows} rows"] = nbytes / seconds
        found[f"operations/s of {rows} rows"] = 2 * rows * out * inner / seconds
    return found


def _in_bf16(probe: Probe, rows: int, out: int, inner: int) -> tuple[Callable[[], Any], int]:
    x, weight = probe.random(rows, inner), probe.random(out, inner)
    return partial(torch.nn.functional.linear, x, weight), 2 * out * inner


def _in_fp8(probe: Probe, rows: int, out: int, inner: int) -> tuple[Callable[[], Any], int]:
    """Scales of rows and columns, as checkpoints have them."""
    if probe.device.type != "cuda":
        raise Skipped("needs a GPU")
    fp8 = torch.float8_e4m3fn
    x, weight = probe.random(rows, inner).to(fp8), probe.random(out, inner).to(fp8)
    scales = [torch.rand(n, 1, device=probe.device, generator=probe.generator) for n in (rows, out)]
    work = partial(
        torch._scaled_mm,
        x,
        weight.T,
        scale_a=scales[0],
        scale_b=scales[1].T,
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return work, out * inner
