"""The bytes of decoded pictures -> the numbers that a vision tower reads, on its device.

The bytes of all views of a batch go there in one copy, whatever their sizes: a quarter of what the numbers take, or an
eighth where each patch holds a picture twice. Every device then finds the same numbers, to the bit: it moves bytes and
looks numbers up. On a CPU numpy does that, ten times as fast as torch. Whole pictures are resized there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.pictures.views import planned_views
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.vision.interface import PixelTensors, ViewTensors
from mmserve.processors.interface import PixelForm

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[Any]
_LEVELS = 256


class PixelInputs:
    """``form``: of the family's image processor. ``dtype``: to which the tower rounds numbers. ``resize``: of a device
    that gets pictures whole, ``made_picture`` called behind the numbers of each."""

    def __init__(
        self,
        form: PixelForm | None,
        transfers: Transfers,
        dtype: torch.dtype,
        resize: PictureResize | None = None,
        made_picture: Callable[[], object] = lambda: None,
    ) -> None:
        self._form, self._transfers, self._resize, self._made_picture = form, transfers, resize, made_picture
        if form is not None:
            channels, device = torch.arange(len(form.values), dtype=torch.int32), transfers.device
            self._table = torch.from_numpy(form.values).to(device, dtype).view(-1, 1)
            self._host_table = _bits(self._table.view(-1, _LEVELS)).numpy() if transfers.is_host else None
            self._first = (channels * _LEVELS).to(device)
            """Entry of the table for byte 0 of each channel."""

    def __call__(self, pictures: Sequence[PixelTensors]) -> list[ViewTensors]:
        """Of at least one picture. Does not wait for the device."""
        if self._form is None:
            return [ViewTensors(picture.pixels, picture.grids) for picture in pictures]
        sent = iter(self._sent([picture for picture in pictures if picture.plan is None]))
        made = []
        for picture in pictures:
            values = self._values(self._views(picture) if picture.plan else next(sent), self._form)
            made.append(ViewTensors(values, picture.grids))
            if picture.plan:
                self._made_picture()
        return made

    def _sent(self, pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        """Views on the device."""
        if not pictures:
            return []
        flat = [picture.pixels.flatten() for picture in pictures]
        sent = self._transfers.to_device(flat[0] if len(flat) == 1 else torch.cat(flat))
        parts = torch.split(sent, [len(part) for part in flat])
        return [part.view(picture.pixels.shape) for part, picture in zip(parts, pictures, strict=True)]

    def _views(self, picture: PixelTensors) -> torch.Tensor:
        """Made on the device. Each picture has a copy of its own, so that the device holds one of them at a time."""
        assert self._resize is not None, "this device gets no whole pictures"
        assert picture.plan is not None
        return planned_views(self._transfers.to_device(picture.pixels[0]), picture.plan, self._resize)

    def _values(self, pixels: torch.Tensor, form: PixelForm) -> torch.Tensor:
        if self._host_table is not None:
            numbers = torch.empty(_shape(pixels, form), dtype=self._table.dtype)
            fill = _fill_patches if form.side else _fill_planes
            fill(_bits(numbers).numpy(), pixels.numpy(), self._host_table, form)
            return numbers
        if not form.side:
            return self._looked_up(pixels.permute(0, 3, 1, 2), 2)
        patches = self._looked_up(_patches(pixels, form), 1)
        frames = patches.view(len(patches), len(self._first), 1, -1).expand(-1, -1, form.frames, -1)
        return frames.reshape(len(patches), -1)

    def _looked_up(self, pixels: torch.Tensor, axes: int) -> torch.Tensor:
        """The numbers of bytes whose channel stands before the last ``axes`` axes."""
        entries = pixels + self._first.view(-1, *(1,) * axes)
        return F.embedding(entries.contiguous(), self._table).squeeze(-1)


def _shape(pixels: torch.Tensor, form: PixelForm) -> tuple[int, ...]:
    """Of the numbers: [tiles, 3, height, width] or [patches, 3 * frames * side * side]."""
    tiles, height, width, channels = pixels.shape
    if not form.side:
        return tiles, channels, height, width
    return height // form.side * (width // form.side), channels * form.frames * form.side**2


def _bits(numbers: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that numpy has."""
    return numbers.view(torch.int16) if numbers.element_size() == 2 else numbers


def _fill_planes(planes: Numbers, pixels: Bytes, table: Numbers, _: PixelForm) -> None:
    for channel, values in enumerate(table):
        np.take(values, pixels[..., channel], out=planes[:, channel], mode="clip")


def _fill_patches(patches: Numbers, pixels: Bytes, table: Numbers, form: PixelForm) -> None:
    """Line of blocks by line of blocks, so that a core's cache holds what is transposed."""
    _, height, width, channels = pixels.shape
    unit, side, block = form.side * form.block, form.side, form.block
    num_blocks = width // unit
    strips = patches.reshape(height // unit, num_blocks * block**2, channels, form.frames, side**2)
    for strip, lines in zip(strips, pixels.reshape(height // unit, unit, width, channels), strict=True):
        bytes_ = lines.reshape(block, side, num_blocks, block, side, channels).transpose(2, 0, 3, 5, 1, 4)
        bytes_ = bytes_.reshape(num_blocks * block**2, channels, side**2)
        for channel, values in enumerate(table):
            strip[:, channel] = np.take(values, bytes_[:, channel], mode="clip")[:, None]


def _patches(pixels: torch.Tensor, form: PixelForm) -> torch.Tensor:
    """[1, height, width, 3] -> [patches, 3, side * side]."""
    _, height, width, channels = pixels.shape
    unit = form.side * form.block
    across = pixels.view(height // unit, form.block, form.side, width // unit, form.block, form.side, channels)
    return across.permute(0, 3, 1, 4, 6, 2, 5).reshape(-1, channels, form.side**2)
