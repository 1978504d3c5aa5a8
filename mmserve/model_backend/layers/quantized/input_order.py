"""The order in which a layer's inputs form groups, where the checkpoint chose it (act-order)."""

from __future__ import annotations

import torch

from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.runtime.errors import StartupError


class InputOrder:
    """``g_idx`` of each matrix of a layer: int32 [in], the group of each input."""

    def __init__(self, shape: LinearShape) -> None:
        self._groups = {name: torch.empty(shape.in_size, dtype=torch.int32) for name in shape.names}

    def target(self, shard: LinearShard) -> Target:
        """Raises StartupError where ranks divide the inputs, as a group's inputs would lie on several of them."""
        into = self._groups[shard.name]
        if len(into) < shard.shape[1]:
            raise StartupError(f"{shard.name} is quantised in act-order, which is supported with --tp 1 alone")
        return Target(into, (shard.shape[1],))

    def of_groups(self, group_size: int) -> torch.Tensor:
        """int64 [in]: the inputs, group by group. Raises StartupError if groups are not of this size."""
        (name, groups), *others = self._groups.items()
        for other, its_groups in others:
            if not torch.equal(groups, its_groups):
                raise StartupError(f"{name} and {other} are quantised in different act-orders, which is not supported")
        order = groups.argsort(stable=True)
        if not torch.equal(groups[order].long(), torch.arange(len(groups)) // group_size):
            raise StartupError(f"g_idx of {name} does not make groups of {group_size} inputs")
        return order
