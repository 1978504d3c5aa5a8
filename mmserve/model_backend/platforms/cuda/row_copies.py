"""Rows between the arena, whose pages are registered, and a GPU: by its copy engines, on a stream of their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.model_backend.platforms.cuda.pinned import PinnedArena
from mmserve.model_backend.platforms.cuda.transfers import CudaTransfers
from mmserve.model_backend.transfers import HostCopy


class CudaRowCopies:
    """See ``model_backend.row_copies.RowCopies``. ``arena``: where the rows outside the device are."""

    def __init__(self, device: torch.device, arena: PinnedArena | None = None) -> None:
        self._device, self._transfers, self._arena = device, CudaTransfers(device), arena
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def read(self, rows: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], HostCopy]:
        computing = torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.stream(self._stream):
                copied = [each.to(self._device, non_blocking=True) for each in rows]
                finite = self._transfers.to_host(torch.stack([torch.isfinite(each).all() for each in copied]))
        except BaseException:  # re-raised
            self.wait()
            raise
        computing.wait_stream(self._stream)
        for each in copied:
            each.record_stream(computing)  # their memory is the other stream's
        return copied, finite

    def write(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        with torch.cuda.stream(self._stream):
            for source, target in rows:
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)

    def wait(self) -> None:
        done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        done.record(self._stream)
        done.synchronize()
