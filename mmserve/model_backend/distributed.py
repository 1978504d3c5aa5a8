"""Tensor parallelism: one process a rank, and the collectives between them.

All ranks call the same collectives in the same order. With one rank each call is a no-op, and torch.distributed is not
initialised.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

_TIMEOUT = timedelta(minutes=10)


class HeadShare(NamedTuple):
    """Consecutive heads."""

    first: int
    num: int


@dataclass(frozen=True)
class TpGroup:
    """This rank among ``size`` ranks."""

    rank: int = 0
    size: int = 1
    on_host: bool = True
    """True with gloo: collectives run in host memory, also for tensors on a GPU that ranks share."""

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
        return self._reduce(tensor, dist.ReduceOp.SUM)

    def max(self, tensor: torch.Tensor) -> torch.Tensor:
        """Elementwise maximum over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MAX)

    def min(self, tensor: torch.Tensor) -> torch.Tensor:
        """Elementwise minimum over ranks, in place."""
        return self._reduce(tensor, dist.ReduceOp.MIN)

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's values on every rank, in place."""
        if self.size > 1:
            host = self._host(tensor)
            dist.broadcast(host, src=0)
            self._copy_back(host, tensor)
        return tensor

    def gather_columns(self, shard: torch.Tensor) -> torch.Tensor | None:
        """All ranks' [rows, columns] concatenated along columns on rank 0, None on the others."""
        if self.size == 1:
            return shard
        host = self._host(shard.contiguous())
        parts = [torch.empty_like(host) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(host, parts, dst=0)
        return None if parts is None else torch.cat(parts, dim=1).to(shard.device)

    def _reduce(self, tensor: torch.Tensor, op: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.size > 1:
            host = self._host(tensor)
            dist.all_reduce(host, op=op)
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


def at_file(path: Path, size: int) -> Meeting:
    """All ``size`` ranks are on this machine, and have this file."""
    return Meeting(FileStore(str(path), size))


@contextmanager
def join(rank: int, size: int, meeting: Meeting | None, device: torch.device) -> Iterator[TpGroup]:
    """Initialise the process group; destroy it at the end. One rank alone needs no meeting."""
    if size == 1:
        yield TpGroup()
        return
    assert meeting is not None
    on_host = device.type == "cpu" or (meeting.num_here or size) > torch.cuda.device_count()
    if meeting.num_here is not None:
        on_host = _any_on_host(on_host, rank, size, meeting.store)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = meeting.interface
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if on_host else "nccl",
        store=meeting.store,
        rank=rank,
        world_size=size,
        timeout=_TIMEOUT,
    )
    try:
        yield TpGroup(rank, size, on_host)
    finally:
        dist.destroy_process_group()


def _any_on_host(on_host: bool, rank: int, size: int, store: Store) -> bool:
    """True if a rank's machine has too few GPUs: all ranks must choose the same way."""
    store.set(f"on host {rank}", str(on_host))
    return any(store.get(f"on host {other}") == b"True" for other in range(size))
