"""One computation in three ways: by the platform, by torch's reference in the same dtype, and in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from benchmarks.gpu.checks import Figures, Settings
from benchmarks.gpu.rates.device import device_of
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.platforms.reference import TorchPlatform

_TIMES_PLAIN = 2.0
"""How often the error of torch in the same dtype a kernel may have."""
_ALWAYS = {torch.float32: 5e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Relative errors that a kernel may have where torch happens to be more exact; float32 may be three parts of TF32."""


@dataclass(frozen=True)
class Bench:
    """A device and a dtype, with random numbers."""

    platform: Platform
    generator: torch.Generator
    small: bool

    @property
    def device(self) -> torch.device:
        return self.platform.device

    @property
    def dtype(self) -> torch.dtype:
        return self.platform.dtype

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def random(self, *shape: int) -> torch.Tensor:
        """On the CPU, rounded to the dtype, with a few numbers far from the others."""
        numbers = torch.randn(shape, generator=self.generator)
        outliers = torch.rand(shape, generator=self.generator) < 0.002
        return torch.where(outliers, numbers * 20, numbers).to(self.dtype)

    def plain(self) -> TorchPlatform:
        """Torch's reference for the same device and dtype."""
        return TorchPlatform(self.device, self.dtype)


EXACT = TorchPlatform(torch.device("cpu"), torch.float64)


class Case(NamedTuple):
    """``on(platform)`` computes on that platform's device and in its dtype, from the same inputs each time."""

    name: str
    on: Callable[[Platform], torch.Tensor]


Cases = Callable[[Bench], Iterator[Case]]


class Kernel(NamedTuple):
    """``cases``: with new inputs for each call."""

    name: str
    cases: Cases
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    """On a GPU."""


def benches(settings: Settings, kernel: Kernel) -> Iterator[Bench]:
    """The device in each of the kernel's dtypes; a CPU computes in float32."""
    device = device_of(settings)
    for dtype in ("float32",) if device.type == "cpu" else kernel.dtypes:
        generator = torch.Generator().manual_seed(settings.seed)
        yield Bench(platform_for(device.type, dtype), generator, settings.small)


def compare(bench: Bench, case: Case) -> Figures:
    """Relative errors. Raises AssertionError if the kernel's is too large, or if its bits differ between two runs."""
    exact = case.on(EXACT)
    plain_error = error_of(case.on(bench.plain()), exact)
    found = case.on(bench.platform)
    error = error_of(found, exact)
    limit = max(_TIMES_PLAIN * plain_error, _ALWAYS[bench.dtype])
    assert error <= limit, f"relative error {error:.2e}, of torch in {bench.name} {plain_error:.2e}, limit {limit:.2e}"
    assert torch.equal(found, case.on(bench.platform)), "not the same bits twice"
    return {"error": error, "error of torch": plain_error}


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """||found - exact|| / ||exact||; infinite if a number is not finite."""
    difference = (found.detach().cpu().double() - exact).norm() / exact.norm()
    return float(difference) if bool(torch.isfinite(difference)) else float("inf")
