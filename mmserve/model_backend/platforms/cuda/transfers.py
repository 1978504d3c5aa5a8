"""Copies to and from a GPU through pinned memory, ordered with the kernels of the current stream."""

from __future__ import annotations

import torch

from mmserve.model_backend.transfers import HostCopy


class CudaTransfers:
    """See ``model_backend.transfers.Transfers``.

    Torch keeps pinned memory for later copies, and reuses a piece only once the copy that reads it is done.
    """

    late = True
    is_host = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_device(self, values: torch.Tensor) -> torch.Tensor:
        return values.pin_memory().to(self.device, non_blocking=True)

    def copy_into(self, target: torch.Tensor, values: torch.Tensor) -> None:
        target.copy_(values.pin_memory(), non_blocking=True)

    def to_host(self, values: torch.Tensor) -> HostCopy:
        return _PinnedCopy(values)


class _PinnedCopy:
    def __init__(self, values: torch.Tensor) -> None:
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values, non_blocking=True)
        # Blocking: a thread that waits in a loop would hold the driver's lock, which launches need.
        self._copied = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(values.device))

    def wait(self) -> torch.Tensor:
        self._copied.synchronize()
        return self._host
