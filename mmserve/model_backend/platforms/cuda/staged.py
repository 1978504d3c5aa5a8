"""Weights go from a checkpoint's mapped files to a GPU through pinned buffers in turn.

All threads of the process copy from the file's pages into a buffer, while the device reads the buffers before it. So
weights lie in the host's memory once, in the files' pages, and neither side waits for the other as long as both are as
fast as the buffers are filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

_BUFFER_NBYTES, _BUFFERS = 32 << 20, 3
Send = Callable[[torch.Tensor, torch.Tensor], Callable[[], object]]
"""(target, a part of a buffer) -> waits until the device has read it. Begins to copy."""


@dataclass
class _Buffer:
    memory: torch.Tensor
    wait: Callable[[], object] = lambda: None
    """Until the device has read what was put in last."""


class StagedCopies:
    """See ``weight_copy.Copy``. ``memory``: pinned buffers of bytes, of one size, at least two."""

    def __init__(self, memory: Sequence[torch.Tensor], send: Send) -> None:
        self._buffers = [_Buffer(each) for each in memory]
        self._send, self._next = send, 0

    def __call__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        if target.device.type == "cpu":
            target.copy_(source)  # a matrix that is converted later
            return
        for rows in self._parts(source):
            buffer = self._buffers[self._next]
            self._next = (self._next + 1) % len(self._buffers)
            part = source[rows]
            buffer.wait()
            staged = buffer.memory[: part.numel() * part.element_size()].view(part.dtype).view(part.shape)
            staged.copy_(part)
            buffer.wait = self._send(target[rows], staged)

    def _parts(self, source: torch.Tensor) -> Iterator[slice | tuple[slice, ...]]:
        """Rows that fit a buffer together. A row that fits none is cut where its first axis allows it."""
        nbytes = self._buffers[0].memory.numel()
        if not source.dim():
            yield ()
            return
        count = nbytes // max(1, source[0].numel() * source.element_size()) if len(source) else 1
        if count:
            for first in range(0, len(source), count):
                yield slice(first, first + count)
            return
        for row in range(len(source)):
            for part in self._parts(source[row]):
                yield (slice(row, row + 1), *(part if isinstance(part, tuple) else (part,)))


def staged_copies(device: torch.device) -> StagedCopies:
    """Torch keeps the buffers' memory pinned for later copies of their size, also when this has gone."""
    memory = [torch.empty(_BUFFER_NBYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS)]

    def send(target: torch.Tensor, staged: torch.Tensor) -> Callable[[], object]:
        if target.dtype != staged.dtype or not target.is_contiguous():
            # As it is, and converted there: torch would else make a copy on the host, and wait.
            staged = staged.to(device, non_blocking=True)
        target.copy_(staged, non_blocking=True)
        read = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        read.record(torch.cuda.current_stream(device))
        return read.synchronize

    return StagedCopies(memory, send)
