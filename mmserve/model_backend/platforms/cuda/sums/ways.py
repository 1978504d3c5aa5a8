"""Sums through memory that the GPUs of one machine map from each other (torch's symmetric memory).

The interface of torch is not stable (torch 2.11 to 2.13 have what is used here), so ``fastest`` tests each way before
it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

Way = Callable[[torch.Tensor], None]
"""Adds up over all ranks, in place. Takes contiguous tensors of one dtype that ``fits`` says."""
_ALIGNED_NBYTES = 16
"""What one access of the kernels reads, for each rank."""


def fits(tensor: torch.Tensor, ranks: int) -> bool:
    """The kernels divide the tensor evenly."""
    return tensor.nbytes % (_ALIGNED_NBYTES * ranks) == 0 and tensor.is_contiguous()


def symmetric_ways(group: dist.ProcessGroup, dtype: torch.dtype, device: torch.device, nbytes: int) -> dict[str, Way]:
    """By name, for tensors of at most so many bytes. All ranks call it together.

    Raises RuntimeError, AttributeError or ImportError where torch or the machine has no such memory.
    """
    import torch.distributed._symmetric_memory as symmetric

    room = symmetric.empty(nbytes // dtype.itemsize, dtype=dtype, device=device)
    handle = symmetric.rendezvous(room, group)
    has_multicast = bool(getattr(handle, "multicast_ptr", 0))
    return ways_of(torch.ops.symm_mem, room, group.group_name, has_multicast=has_multicast)


def ways_of(operations: Any, room: torch.Tensor, group: str, *, has_multicast: bool) -> dict[str, Way]:
    """``operations``: torch's. ``room``: on every rank, of the tensors' dtype."""

    def one_shot(tensor: torch.Tensor) -> None:
        flat = tensor.view(-1)
        part = room[: len(flat)]
        part.copy_(flat)
        operations.one_shot_all_reduce_out(part, "sum", group, flat)

    def in_place(operation: Callable[..., Any]) -> Way:
        def add_up(tensor: torch.Tensor) -> None:
            flat = tensor.view(-1)
            part = room[: len(flat)]
            part.copy_(flat)
            operation(part, "sum", group)
            flat.copy_(part)

        return add_up

    found: Mapping[str, Way] = {"one-shot": one_shot, "two-shot": in_place(operations.two_shot_all_reduce_)}
    if has_multicast:
        found = {**found, "multimem": in_place(operations.multimem_all_reduce_)}
    return dict(found)
