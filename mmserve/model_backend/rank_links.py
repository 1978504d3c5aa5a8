"""Streams between the tensor-parallel ranks of one host, which are processes of one user, and the exchange of tensors.

torch's gloo takes about 1 ms for a sum of two small tensors over the loopback interface; this takes about 20 us.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import reduce
from pathlib import Path
from typing import Literal

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

_TIMEOUT_S = 600.0
"""A rank may have to wait so long for another one's part of a step."""
_CHUNK_NBYTES = 32 << 10
"""Twice as much fits into a socket's buffer, so ranks that all send before they receive never block each other."""


Reduction = Literal["sum", "max"]
_COMBINED: Mapping[Reduction, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
}


def combined(parts: Sequence[torch.Tensor], op: Reduction) -> torch.Tensor:
    """Of all ranks, in their order: so the bits are the same on all of them, whatever else is in the tensors."""
    return reduce(_COMBINED[op], parts)


class RankLinks:
    """Connected sockets of this rank by the other ranks' numbers; see ``distributed.Collectives``.

    Tensors are in host memory. All methods raise ConnectionError if another rank has ended, and TimeoutError.
    """

    def __init__(self, rank: int, sockets: Mapping[int, socket.socket]) -> None:
        self._rank, self._sockets = rank, sockets

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        """See ``combined``."""
        tensor.copy_(combined(self._exchange(tensor), op))

    def broadcast(self, tensor: torch.Tensor) -> None:
        if self._rank == 0:
            for link in self._sockets.values():
                link.sendall(_bytes(tensor))
        else:
            self._receive(0, _bytes(tensor))

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        if self._rank != 0:
            self._sockets[0].sendall(_bytes(tensor))
            return None
        parts = [tensor, *(torch.empty_like(tensor) for _ in self._sockets)]
        for rank in self._sockets:
            self._receive(rank, _bytes(parts[rank]))
        return parts

    def _exchange(self, own: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' tensors by rank."""
        parts = [own if rank == self._rank else torch.empty_like(own) for rank in range(len(self._sockets) + 1)]
        sent = _bytes(own)
        received = {rank: _bytes(parts[rank]) for rank in self._sockets}
        for start in range(0, len(sent), _CHUNK_NBYTES):
            chunk = slice(start, start + _CHUNK_NBYTES)
            for link in self._sockets.values():
                link.sendall(sent[chunk])
            for rank, into in received.items():
                self._receive(rank, into[chunk])
        return parts

    def _receive(self, rank: int, into: memoryview) -> None:
        while into:
            count = self._sockets[rank].recv_into(into)
            if not count:
                raise ConnectionError(f"rank {rank} has ended")
            into = into[count:]


def _bytes(tensor: torch.Tensor) -> memoryview:
    """Of a contiguous tensor."""
    return tensor.view(-1).view(torch.uint8).numpy().data


@contextmanager
def connect(rank: int, size: int, store: Store, directory: Path) -> Iterator[RankLinks]:
    """Connect every rank with every other one, through sockets in a ``directory`` that no other user can enter.

    The ``store`` tells a rank that another one listens. The sockets' files are removed when all are connected.
    """
    path = _path(directory, rank)
    path.unlink(missing_ok=True)  # of a rank that was killed while it connected
    with ExitStack() as stack:
        sockets: dict[int, socket.socket] = {}
        with closing(socket.socket(socket.AF_UNIX)) as listener:
            listener.bind(str(path))
            stack.callback(path.unlink, missing_ok=True)
            listener.listen(size)
            listener.settimeout(_TIMEOUT_S)
            store.set(path.name, "listens")
            for lower in range(rank):
                sockets[lower] = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
                store.get(_path(directory, lower).name)
                sockets[lower].connect(str(_path(directory, lower)))
                sockets[lower].sendall(bytes([rank]))
            while len(sockets) < size - 1:
                link = stack.enter_context(closing(listener.accept()[0]))
                sockets[_hello(link)] = link
        path.unlink()
        for link in sockets.values():
            link.settimeout(_TIMEOUT_S)
        yield RankLinks(rank, sockets)


def _path(directory: Path, rank: int) -> Path:
    return directory / f"rank-links-{rank}"


def _hello(link: socket.socket) -> int:
    """The number of the rank that has connected."""
    link.settimeout(_TIMEOUT_S)
    hello = link.recv(1)
    if not hello:
        raise ConnectionError("another rank has ended")
    return hello[0]
