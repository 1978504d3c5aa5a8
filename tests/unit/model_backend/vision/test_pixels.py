"""Bytes of pictures become the tower's numbers on its device, in one copy and without a wait."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import PixelForm
from tests.fakes.devices.late_device import LateDevice, LateTransfers

_VALUES = np.random.default_rng(0).normal(size=(3, 256)).astype(np.float32)
PATCHES = PixelForm(_VALUES, side=2, block=2, frames=2)
FORMS = {"tiles": PixelForm(_VALUES), "patches": PATCHES, "lines": PixelForm(_VALUES, side=4)}


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice() as device:
        yield device


def pictures(form: PixelForm) -> list[PixelTensors]:
    """Of different sizes."""
    shapes = [(2, 4, 4, 3), (1, 4, 4, 3)] if not form.side else [(1, 8, 4, 3), (1, 4, 12, 3), (1, 4, 4, 3)]
    random = torch.Generator().manual_seed(1)
    grids = torch.ones(1, 3, dtype=torch.int32)
    return [PixelTensors(torch.randint(0, 256, shape, generator=random).byte(), grids) for shape in shapes]


def number(pixels: torch.Tensor, tile: int, y: int, x: int, channel: int) -> float:
    return float(_VALUES[channel, pixels[tile, y, x, channel]])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_number_is_that_of_its_byte(form: PixelForm) -> None:
    inputs = PixelInputs(form, PlainTransfers(torch.device("cpu")), torch.float32)
    for (pixels, *_), (values, _) in zip(pictures(form), inputs(pictures(form)), strict=True):
        if form.side:
            lines, columns = pixels.shape[1] // form.side, pixels.shape[2] // form.side
            order = [(y, x) for y in range(lines) for x in range(columns)]
            block = form.block
            order.sort(key=lambda at: (at[0] // block, at[1] // block, at[0] % block, at[1] % block))
            expected = [
                [
                    number(pixels, 0, form.side * line + y, form.side * column + x, channel)
                    for channel in range(3)
                    for _ in range(form.frames)
                    for y in range(form.side)
                    for x in range(form.side)
                ]
                for line, column in order
            ]
        else:
            at = [(tile, y, x) for tile in range(len(pixels)) for y in range(4) for x in range(4)]
            flat = [[number(pixels, *each, channel) for each in at] for channel in range(3)]
            expected = torch.tensor(flat).view(3, -1, 4, 4).transpose(0, 1).tolist()
        assert values.tolist() == expected


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_batch_takes_one_copy_of_bytes_and_no_wait(form: PixelForm, device: LateDevice) -> None:
    sent: list[torch.Tensor] = []

    class Recording(LateTransfers):
        def to_device(self, values: torch.Tensor) -> torch.Tensor:
            sent.append(values)
            return super().to_device(values)

    transfers = Recording(device)
    inputs = PixelInputs(form, transfers, torch.bfloat16)
    device.loading = False
    found = [transfers.to_host(each.values) for each in inputs(pictures(form))]
    assert device.num_queued > len(found), "nothing was waited for"
    assert [(each.dtype, each.numel()) for each in sent] == [
        (torch.uint8, sum(each.pixels.numel() for each in pictures(form)))
    ]
    plain = PixelInputs(form, PlainTransfers(torch.device("cpu")), torch.float32)(pictures(form))
    for late, here in zip(found, plain, strict=True):
        assert torch.equal(late.wait(), here.values.bfloat16()), "rounded once, as the tower rounds"
    rounded = PixelInputs(form, PlainTransfers(torch.device("cpu")), torch.bfloat16)(pictures(form))
    for exact, here in zip(plain, rounded, strict=True):
        assert torch.equal(here.values, exact.values.bfloat16())


def test_a_tower_that_takes_bytes_gets_them() -> None:
    given = pictures(FORMS["tiles"])
    inputs = PixelInputs(None, PlainTransfers(torch.device("cpu")), torch.float32)
    assert [each.values for each in inputs(given)] == [each.pixels for each in given]
