"""Step 2: every kernel against float64 on new inputs, twice for the same bits; sampling against the CPU's; pictures."""

from __future__ import annotations

from functools import partial
from itertools import chain

from benchmarks.gpu.checks import Checks, Figures, Settings
from benchmarks.gpu.rates.device import device_of, exact_float32


def run(checks: Checks, settings: Settings) -> None:
    checks.run("imports", lambda: _imports(settings), by_all=True)
    if not checks.figures("imports"):
        return
    from benchmarks.gpu.kernels import pictures, resize, sampling
    from benchmarks.gpu.kernels.case import benches, compare
    from benchmarks.gpu.kernels.registry import KERNELS

    exact_float32()
    checks.run("own kernels are in use", partial(_in_use, settings))
    for kernel in KERNELS:
        for bench in benches(settings, kernel):
            for case in kernel.cases(bench):
                checks.run(f"{kernel.name}, {bench.name}, {case.name}", partial(compare, bench, case))
    for name, rows, vocab in sampling.names(settings):
        checks.run(name, partial(sampling.compare, settings, rows, vocab), alone=True)
    for name, check in chain(pictures.checks(settings), resize.checks(settings)):
        checks.run(name, check, alone=True)


def _imports(settings: Settings) -> Figures:
    """Skipped with the name of the package that is missing."""
    from benchmarks.gpu.kernels.registry import KERNELS

    device_of(settings)
    return {"kernels": len(KERNELS)}


def _in_use(settings: Settings) -> Figures:
    """Raises AssertionError if the device is left to torch: then the other checks show little."""
    from mmserve.model_backend.attention.interface import AttentionSpec
    from mmserve.model_backend.platforms.device import platform_for

    platform = platform_for(settings.device, "float32" if settings.small else "bfloat16")
    names = [
        type(part).__name__ for part in (platform.attention(AttentionSpec(8, 2, 128), platform.dtype), platform.ops())
    ]
    assert "SdpaAttention" not in names, "attention is torch's: see the log"
    assert "TorchOps" not in names, "operations are torch's: see the log"
    return {"attention": names[0], "operations": names[1]}
