"""Which part of a stored tensor a rank loads, where one element stands for several outputs or inputs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.runtime.errors import StartupError


class Axes(NamedTuple):
    """How a tensor is laid out."""

    outputs: int
    """Axis of the outputs, 0 or 1. The other one is that of the inputs."""
    per_output: int = 1
    """Outputs that one element, or one group of this tensor, stands for."""
    per_input: int = 1
    """Inputs of the same. At least the matrix's inputs: all of them."""


def groups_of(inputs: int, group_size: int | None) -> int:
    """Groups that ``inputs`` neighbouring inputs have."""
    return 1 if group_size is None else -(-inputs // group_size)


def target_of(into: torch.Tensor, shard: LinearShard, axes: Axes) -> Target:
    """``into``: the layer's tensor, of which the shard fills its outputs. Raises StartupError where ranks cut what one
    element, or one scale, stands for."""
    per_output, per_input = axes.per_output, min(axes.per_input, shard.shape[1])
    first, count = shard.rows.start, shard.rows.stop - shard.rows.start
    cut = shard.start if shard.dim == 0 else 0
    _check_cuts(shard, per_output, first, count, cut, what="outputs")
    size = [-(-shard.shape[0] // per_output), -(-shard.shape[1] // per_input)]
    if shard.dim == 1 and size[1] > 1:
        _check_cuts(shard, per_input, shard.start, into.shape[1 - axes.outputs] * per_input, what="inputs")
    start = shard.start // (per_output if shard.dim == 0 else per_input) if size[shard.dim] > 1 else 0
    shape = (size[0], size[1]) if axes.outputs == 0 else (size[1], size[0])
    dim = axes.outputs if shard.dim == 0 else 1 - axes.outputs
    part = into.narrow(axes.outputs, first // per_output, -(-count // per_output))
    return Target(part, shape, dim, start)


def _check_cuts(shard: LinearShard, together: int, *cuts: int, what: str) -> None:
    if any(cut % together for cut in cuts):
        raise StartupError(
            f"{shard.name} is quantised with {together} {what} together, which a rank would have to share with "
            "another, or with a matrix beside it: use another --tp"
        )
