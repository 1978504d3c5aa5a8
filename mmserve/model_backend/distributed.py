"""Tensor parallelism: one process a rank, and the collectives between them.

All ranks call the same collectives in the same order. With one rank each call is a no-op. In the host memory of one
machine tensors go through Unix sockets, else through torch.distributed: NCCL between GPUs, gloo between machines.
Collectives between GPUs run when their turn on the device comes, and no rank waits for them. What the ranks must know
before they go on, such as that one of them has failed, goes through their hosts beside them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from mmserve.model_backend.rank_links import Reduction, combined, connect

_TIMEOUT = timedelta(minutes=10)
_OPS: Mapping[Reduction, dist.ReduceOp.RedOpType] = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
}


class Collectives(Protocol):
    """Of at least two ranks; tensors are contiguous."""

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        """In place."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's tensor on every rank, in place."""

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        """The tensors of all ranks, of one shape, on rank 0; None on the others."""


class ProcessGroup:
    """See Collectives. By torch.distributed. ``group``: None is the one that all ranks have first."""

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None = None) -> None:
        self._rank, self._size, self._group = rank, size, group

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        dist.all_reduce(tensor, op=_OPS[op], group=self._group)

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src=0, group=self._group)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor] | None:
        parts = [torch.empty_like(tensor) for _ in range(self._size)] if self._rank == 0 else None
        dist.gather(tensor, parts, dst=0, group=self._group)
        return parts


class HostGroup(ProcessGroup):
    """By gloo. Its own order of a sum of three and more ranks depends on the number's place in the tensor, and so on
    what else is in the step: the same request would have other numbers each time."""

    def all_reduce(self, tensor: torch.Tensor, op: Reduction) -> None:
        if self._size == 2:  # there is one order
            super().all_reduce(tensor, op)
            return
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        dist.all_gather(parts, tensor, group=self._group)
        tensor.copy_(combined(parts, op))


class HeadShare(NamedTuple):
    """Consecutive heads."""

    first: int
    num: int


@dataclass(frozen=True)
class TpGroup:
    """This rank among ``size`` ranks."""

    rank: int = 0
    size: int = 1
    collectives: Collectives | None = None
    """None: of one rank."""
    host: Collectives | None = None
    """For tensors in host memory; ``collectives`` itself where that works on such. None: of one rank."""
    on_host: bool = True
    """True if collectives run in host memory, also for tensors on a GPU that ranks share."""

    def share(self, total: int) -> int:
        """``total`` / ranks. ``total`` must be divisible."""
        assert total % self.size == 0, f"{total} does not divide by {self.size} ranks"
        return total // self.size

    def heads(self, total: int) -> HeadShare:
        """This rank's part of ``total`` heads. Where ranks are more than heads, each head is on several ranks."""
        if total >= self.size:
            count = self.share(total)
            return HeadShare(self.rank * count, count)
        assert self.size % total == 0, f"{self.size} ranks do not divide by {total} heads"
        return HeadShare(self.rank * total // self.size, 1)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        return self._reduce(tensor, "sum")

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Elementwise maximum over ranks, in place."""
        return self._reduce(tensor, "max")

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's values on every rank, in place."""
        if self.collectives is not None:
            host = self._host(tensor)
            self.collectives.broadcast(host)
            self._copy_back(host, tensor)
        return tensor

    def gather_columns(self, shard: torch.Tensor) -> torch.Tensor | None:
        """All ranks' [rows, columns] concatenated along columns on rank 0, None on the others."""
        if self.collectives is None:
            return shard
        parts = self.collectives.gather(self._host(shard.contiguous()))
        return None if parts is None else torch.cat(parts, dim=1).to(shard.device)

    def worst(self, numbers: Sequence[int]) -> list[int]:
        """For each place the largest number of all ranks. Waits for their hosts, and for no device."""
        if self.host is None:
            return list(numbers)
        largest = torch.tensor(numbers, dtype=torch.int64)
        self.host.all_reduce(largest, "max")
        return [int(number) for number in largest.tolist()]

    def told(self, number: int) -> int:
        """Rank 0's number. Waits for its host, and for no device; rank 0 waits for nobody."""
        if self.host is None:
            return number
        known = torch.tensor([number], dtype=torch.int64)
        self.host.broadcast(known)
        return int(known)

    def _reduce(self, tensor: torch.Tensor, op: Reduction) -> torch.Tensor:
        if self.collectives is not None:
            host = self._host(tensor)
            self.collectives.all_reduce(host, op)
            self._copy_back(host, tensor)
        return tensor

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self.on_host else tensor

    @staticmethod
    def _copy_back(host: torch.Tensor, tensor: torch.Tensor) -> None:
        if host is not tensor:
            tensor.copy_(host)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks find each other, and how they talk."""

    store: Store
    interface: str = "lo"
    """Network interface of this machine."""
    num_here: int | None = None
    """Ranks on this machine. None: all."""
    directory: Path | None = None
    """Of all ranks, if they are on this machine: for the files of their sockets. No other user can enter it."""


def at_file(path: Path, size: int, directory: Path) -> Meeting:
    """All ``size`` ranks are on this machine, and have this file and directory."""
    return Meeting(FileStore(str(path), size), directory=directory)


@contextmanager
def join(rank: int, size: int, meeting: Meeting | None, device: torch.device) -> Iterator[TpGroup]:
    """Connect the ranks; disconnect them at the end. One rank alone needs no meeting.

    A GPU is the calling thread's own (``Platform.use_in_thread``).
    """
    if size == 1:
        yield TpGroup()
        return
    assert meeting is not None
    on_host = device.type == "cpu" or (meeting.num_here or size) > torch.cuda.device_count()
    if on_host and meeting.directory is not None:
        with connect(rank, size, meeting.store, meeting.directory) as links:
            yield TpGroup(rank, size, links, links)
        return
    if meeting.num_here is not None:
        on_host = _any_on_host(on_host, rank, size, meeting.store)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = meeting.interface
    dist.init_process_group(
        "gloo" if on_host else "nccl",
        store=meeting.store,
        rank=rank,
        world_size=size,
        timeout=_TIMEOUT,
    )
    try:
        group = HostGroup(rank, size) if on_host else ProcessGroup(rank, size)
        with nullcontext(group) if on_host else _between_hosts(rank, size, meeting) as host:
            yield TpGroup(rank, size, group, host, on_host)
    finally:
        dist.destroy_process_group()


@contextmanager
def _between_hosts(rank: int, size: int, meeting: Meeting) -> Iterator[Collectives]:
    """Of ranks whose other collectives are between their GPUs."""
    if meeting.directory is None:
        yield HostGroup(rank, size, dist.new_group(backend="gloo", timeout=_TIMEOUT))
        return
    with connect(rank, size, meeting.store, meeting.directory) as links:
        yield links


def _any_on_host(on_host: bool, rank: int, size: int, store: Store) -> bool:
    """True if a rank's machine has too few GPUs: all ranks must choose the same way."""
    store.set(f"on host {rank}", str(on_host))
    return any(store.get(f"on host {other}") == b"True" for other in range(size))
