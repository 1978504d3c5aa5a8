"""Weights go to a late device through buffers in turn; a buffer is filled again once the device has read it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mmserve.model_backend.platforms.cuda.staged import StagedCopies

NBYTES, BUFFERS = 64, 2


class Device:
    """Reads a buffer when it is waited for, and no earlier. Its tensors say that they are on torch's meta device."""

    def __init__(self) -> None:
        self.memory = [torch.zeros(NBYTES, dtype=torch.uint8) for _ in range(BUFFERS)]
        self.copies = StagedCopies(self.memory, self._send)
        self.sent: list[tuple[int, int]] = []
        """(buffer, bytes) of each part."""
        self._pending: list[Callable[[], None]] = []

    def _send(self, target: torch.Tensor, staged: torch.Tensor) -> Callable[[], object]:
        assert target.is_meta
        assert target.shape == staged.shape
        (buffer,) = (n for n, each in enumerate(self.memory) if staged.data_ptr() == each.data_ptr())
        self.sent.append((buffer, staged.numel() * staged.element_size()))
        done: list[bool] = []

        def read() -> None:
            if not done:
                done.append(True)
                self.found.as_strided(target.shape, target.stride(), target.storage_offset()).copy_(staged)

        self._pending.append(read)
        return read

    def load(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """What is in the device's memory in place of ``target``, which is a part of a tensor of the meta device."""
        self.found = torch.zeros(target.untyped_storage().nbytes() // target.element_size(), dtype=target.dtype)
        self.copies(target, source)
        for read in self._pending:
            read()
        return self.found.as_strided(target.shape, target.stride(), target.storage_offset())


@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (33,), (5, 4), (9, 7), (3, 40), (2, 3, 5), (2, 2, 40)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
def test_every_number_arrives(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    source = torch.randint(0, 200, shape).to(dtype)
    device = Device()
    assert torch.equal(device.load(torch.empty(shape, dtype=dtype, device="meta"), source), source)
    assert all(nbytes <= NBYTES for _, nbytes in device.sent)


def test_a_part_of_a_tensor_and_rows_that_are_apart() -> None:
    source, device = torch.randn(8, 6), Device()
    target = torch.empty(20, 3, device="meta")[4:12]
    assert torch.equal(device.load(target, source[:, 2:5]), source[:, 2:5])


def test_numbers_are_converted_on_the_device() -> None:
    source, device = torch.randn(5, 4), Device()
    found = device.load(torch.empty(5, 4, dtype=torch.bfloat16, device="meta"), source)
    assert torch.equal(found, source.bfloat16())
    assert sum(nbytes for _, nbytes in device.sent) == source.numel() * 4, "as they are in the file"


def test_buffers_are_taken_in_turn_and_filled_while_others_are_read() -> None:
    source, device = torch.arange(64.0).view(16, 4), Device()
    device.load(torch.empty(16, 4, device="meta"), source)
    assert device.sent == [(0, 64), (1, 64), (0, 64), (1, 64)]


def test_a_matrix_that_stays_on_the_host_is_copied_there() -> None:
    target, source, device = torch.zeros(5, 4), torch.randn(5, 4), Device()
    device.copies(target, source)
    assert torch.equal(target, source)
    assert not device.sent
