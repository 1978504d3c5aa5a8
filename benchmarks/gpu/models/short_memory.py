"""A vision tower whose device has too little memory for its batch."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.checks import Figures, Settings
from benchmarks.gpu.models.shapes import SHAPES, SMALL
from benchmarks.gpu.models.weights import random_tower, spec_of
from benchmarks.gpu.rates.device import device_of
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.processors.interface import PixelForm
from mmserve.visualserver.batches.encode import ComputeRows, Encoder, EncoderBatch
from mmserve.visualserver.batches.towers import computing_rows, encoder_device
from mmserve.visualserver.batches.work_journal import WorkJournal
from mmserve.visualserver.images import ENCODED, Image

_MODEL, _PICTURES = "Qwen2.5-VL-7B", 16
_SPARE_NBYTES = 512 << 20
"""That the tower may compute in. By the sizes of its layers a picture takes about 45 MiB."""
_FIT_ON_A_CPU = 3
"""Pictures of one call, where memory does not run out by itself."""


class _Cache:
    """Accepts every embedding."""

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[str, ...]:
        return ("ready",) * len(item_ids)


def encode_in_little_memory(settings: Settings) -> Figures:
    """All pictures get their rows, by calls of fewer. Raises AssertionError if one does not, or if memory sufficed."""
    device, calls = device_of(settings), list[int]()
    platform = platform_for(device.type, "bfloat16" if device.type == "cuda" else "float32")
    shape = (SMALL if settings.small else SHAPES)[_MODEL]
    vision, side = shape.tower, 56 if settings.small else 560
    patch = int((vision.patch_nums // 6) ** 0.5)
    values = np.random.default_rng(settings.seed).normal(size=(3, 256)).astype(np.float32)
    form = PixelForm(values, patch, 2, 2)
    tower = computing_rows(random_tower(shape, settings), form, platform)
    side -= side % (2 * patch)
    rows, width = (side // patch) ** 2 // vision.square, spec_of(shape).text.hidden_size
    nbytes = rows * width * platform.dtype.itemsize
    with _arena(_PICTURES * extent_nbytes(nbytes)) as arena, tempfile.TemporaryDirectory() as made:
        images = [Image(n, Handle(1, 0, 1), Handle(n + 1, n * extent_nbytes(nbytes), nbytes)) for n in range(_PICTURES)]
        for image in images:
            arena.open(image.embed)
        cache: Any = _Cache()
        encoder = Encoder(
            _counted(tower, calls, settings),
            platform.dtype,
            arena,
            cache,
            WorkJournal(Path(made) / "work", _PICTURES),
            _PICTURES,
            encoder_device(platform, arena, None),
        )
        grids = torch.tensor([[1, side // patch, side // patch]], dtype=torch.int32)
        random = torch.Generator().manual_seed(settings.seed)
        pixels = torch.randint(0, 256, (1, side, side, 3), generator=random).byte()
        views = [PixelTensors(pixels, grids)] * _PICTURES
        with _little_memory(device):
            outcomes = encoder.encode([EncoderBatch(images, views)]).outcomes
        assert all(outcome is ENCODED for outcome in outcomes.values()), "a picture has no rows"
        assert len(calls) > 1, "memory has not run out"
    return {"pictures of the calls": calls}


def _counted(tower: ComputeRows, calls: list[int], settings: Settings) -> ComputeRows:
    def compute(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        calls.append(len(pictures))
        if settings.small and len(pictures) > _FIT_ON_A_CPU:
            raise torch.OutOfMemoryError("pretended")
        return tower(pictures)

    return compute


@contextmanager
def _little_memory(device: torch.device) -> Iterator[None]:
    """Of a GPU, for this process."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    _, total = torch.cuda.mem_get_info(device)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + _SPARE_NBYTES) / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


@contextmanager
def _arena(nbytes: int) -> Iterator[Arena]:
    arena = Arena.create(nbytes)
    try:
        yield arena
    finally:
        arena.close()
