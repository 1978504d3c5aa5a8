"""Pixels on their way to a tower, and embedding rows on their way between the arena and the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.checks import Figures, Settings
from benchmarks.gpu.rates.device import device_of
from benchmarks.gpu.rates.timing import Timer
from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import PixelForm

_COPIES = 8
_BUSY_PRODUCTS = 50


def checks(settings: Settings) -> Iterator[tuple[str, Callable[[], Figures]]]:
    values = np.random.default_rng(settings.seed).normal(size=(3, 256)).astype(np.float32)
    for name, form in (
        ("tiles", PixelForm(values)),
        ("patches", PixelForm(values, side=14, block=2, frames=2)),
        ("lines of patches", PixelForm(values, side=14)),
    ):
        yield f"pixels, {name}", partial(_pixels, settings, form)
    yield "rows into the arena", partial(_into_arena, settings)
    yield "rows out of the arena", partial(_out_of_arena, settings)


def _pixels(settings: Settings, form: PixelForm) -> Figures:
    """Numbers of a ragged batch are the CPU's, to the bit. Raises AssertionError."""
    platform = _platform(settings)
    pictures = _pictures(settings, form)
    inputs = PixelInputs(form, platform.transfers(), platform.dtype)
    expected = PixelInputs(form, PlainTransfers(torch.device("cpu")), torch.float32)(pictures)
    for found, plain in zip(inputs(pictures), expected, strict=True):
        assert torch.equal(found.values.cpu(), plain.values.to(platform.dtype)), "other numbers than the CPU's"
    nbytes = sum(picture.pixels.numel() for picture in pictures)
    seconds = Timer(platform.device, small=settings.small).median_s(lambda: inputs(pictures))
    return {"pictures": len(pictures), "MiB": nbytes / 2**20, "ms": 1e3 * seconds, "bytes/s": nbytes / seconds}


def _pictures(settings: Settings, form: PixelForm) -> list[PixelTensors]:
    random = torch.Generator().manual_seed(settings.seed)
    side = 28 if settings.small else 336
    sizes = [(tiles, side, side) for tiles in (1, 4, 2)]
    if form.side:
        sizes = [(1, side, 2 * side), (1, 3 * side, side), (1, side, side)] * 2
    grids = torch.ones(1, 3, dtype=torch.int32)
    return [PixelTensors(torch.randint(0, 256, (*size, 3), generator=random).byte(), grids) for size in sizes]


def _into_arena(settings: Settings) -> Figures:
    platform, count = _platform(settings), 1 << (12 if settings.small else 21)
    nbytes = platform.dtype.itemsize * _COPIES * count
    with _arena(nbytes) as arena:
        copies = platform.row_copies(arena)
        lists = _lists(settings, platform, count)
        targets = _parts(arena, platform.dtype, count)
        pairs = list(zip(lists, targets, strict=True))

        def write() -> None:
            copies.write(pairs)
            copies.wait()

        write()
        for source, target in pairs:
            assert torch.equal(source.cpu(), target), "other numbers in the arena"
        return _rate(settings, platform, write, nbytes)


def _out_of_arena(settings: Settings) -> Figures:
    """Rows are there while the device still computes what was launched before. Raises AssertionError."""
    platform, count = _platform(settings), 1 << (12 if settings.small else 21)
    nbytes = platform.dtype.itemsize * _COPIES * count
    with _arena(nbytes) as arena:
        copies = platform.row_copies(arena)
        parts = _parts(arena, platform.dtype, count)
        for part, numbers in zip(parts, _lists(settings, platform, count), strict=True):
            part.copy_(numbers.cpu())

        def read() -> list[torch.Tensor]:
            found, finite = copies.read(parts)
            copies.wait()
            assert bool(finite.wait().all()), "not finite"
            return found

        for found, part in zip(read(), parts, strict=True):
            assert torch.equal(found.cpu(), part), "other numbers than in the arena"
        beside = _beside_products(platform, read)
        return _rate(settings, platform, read, nbytes) | {"did not wait for the device": beside}


def _beside_products(platform: Platform, read: Callable[[], object]) -> bool:
    """Raises AssertionError if a GPU was waited for."""
    if platform.device.type != "cuda":
        return True
    a = torch.randn(8192, 8192, device=platform.device, dtype=platform.dtype)
    torch.cuda.synchronize(platform.device)
    for _ in range(_BUSY_PRODUCTS):
        torch.mm(a, a)
    computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
    computed.record()
    read()
    early = not computed.query()
    assert early, "reading rows has waited for what was launched before"
    return early


def _rate(settings: Settings, platform: Platform, work: Callable[[], object], nbytes: int) -> dict[str, float]:
    seconds = Timer(platform.device, small=settings.small).median_s(work)
    return {"MiB": nbytes / 2**20, "ms": 1e3 * seconds, "bytes/s": nbytes / seconds}


def _platform(settings: Settings) -> Platform:
    return platform_for(device_of(settings).type, "float32" if settings.small else "bfloat16")


def _lists(settings: Settings, platform: Platform, count: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(settings.seed)
    return [torch.randn(count, generator=random).to(platform.device, platform.dtype) for _ in range(_COPIES)]


def _parts(arena: Arena, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    whole = torch.frombuffer(arena.mapping(), dtype=torch.uint8)[: dtype.itemsize * _COPIES * count].view(dtype)
    return list(whole.split(count))


@contextmanager
def _arena(nbytes: int) -> Iterator[Arena]:
    arena = Arena.create(nbytes)
    try:
        yield arena
    finally:
        arena.close()
