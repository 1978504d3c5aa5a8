"""Pictures that are sent to the device whole and resized there: Pillow's bytes, and the time beside Pillow's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from PIL import Image

from benchmarks.gpu.checks import Figures, Settings
from benchmarks.gpu.rates.device import device_of
from benchmarks.gpu.rates.timing import Timer
from mmserve.model_backend.pictures.resize import PictureResize, TorchResize
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.processors.pixels.sources import Size

_PICTURES: tuple[tuple[str, Size, Size], ...] = (
    ("BICUBIC", (1536, 1536), (980, 980)),
    ("BILINEAR", (1280, 853), (896, 896)),
    ("LANCZOS", (1600, 1200), (2048, 1536)),
    ("BOX", (600, 1000), (336, 336)),
)
_SMALL = 16
"""What the sides of pictures are divided by for a run that only shows that the code works."""


def checks(settings: Settings) -> Iterator[tuple[str, Callable[[], Figures]]]:
    for name, source, target in _PICTURES:
        shown = " to ".join("{} x {}".format(*size) for size in (source, target))
        yield f"resize, {name.lower()}, {shown}", partial(_resize, settings, name, source, target)


def _resize(settings: Settings, name: str, source: Size, target: Size) -> Figures:
    """Raises AssertionError for bytes that are not Pillow's, or if a GPU leaves pictures to Pillow."""
    platform = platform_for(device_of(settings).type, "float32" if settings.small else "bfloat16")
    resize, resample = _used(platform), Image.Resampling[name]
    divisor = _SMALL if settings.small else 1
    width, height, *to = (side // divisor for side in (*source, *target))
    size = (to[0], to[1])
    noise = np.random.default_rng(settings.seed).integers(0, 256, (height, width, 3), np.uint8)
    image, picture, transfers = Image.fromarray(noise), torch.from_numpy(noise), platform.transfers()
    on_device = transfers.to_device(picture)
    found = transfers.to_host(resize(on_device, size, resample)).wait()
    different = int((found != torch.from_numpy(np.array(image.resize(size, resample)))).sum())
    assert not different, f"{different} of {found.numel()} bytes are not Pillow's"
    timer, plain = (Timer(device, small=settings.small) for device in (platform.device, torch.device("cpu")))
    return {
        "MiB": noise.nbytes / 2**20,
        "ms": 1e3 * timer.median_s(lambda: resize(transfers.to_device(picture), size, resample)),
        "ms of the copy": 1e3 * timer.median_s(lambda: transfers.to_device(picture)),
        "ms of the kernels": 1e3 * timer.median_s(lambda: resize(on_device, size, resample)),
        "ms of Pillow": 1e3 * plain.median_s(lambda: image.resize(size, resample)),
    }


def _used(platform: Platform) -> PictureResize:
    """A CPU has none of its own: there the reference is compared."""
    if platform.device.type == "cpu":
        return TorchResize(platform.transfers())
    resize = platform.picture_resize()
    assert resize is not None, "pictures are resized by Pillow: see the log"
    return resize
