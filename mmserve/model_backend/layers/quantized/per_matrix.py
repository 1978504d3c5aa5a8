"""Scales of which each matrix of a fused layer has its own, whatever rows of the layer it fills."""

from __future__ import annotations

import torch

from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.runtime.errors import StartupError


class MatrixScales:
    """One scale a matrix, or one for each block of outputs and inputs of a matrix."""

    def __init__(self, block: tuple[int, int] | None) -> None:
        self._block = block
        self._parts: dict[str, tuple[LinearShard, torch.Tensor]] = {}

    def target(self, shard: LinearShard, in_size: int) -> Target:
        """``in_size``: of this rank. Raises StartupError if ranks divide a block's inputs."""
        if self._block is None:
            into = self._stored(shard, 1)
            return Target(into, (1,))
        (height, width), (outputs, inputs) = self._block, shard.shape
        if shard.dim == 1 and in_size < inputs and (in_size % width or shard.start % width):
            raise StartupError(f"{shard.name} is quantised in blocks of {width} inputs, which ranks must not divide")
        first, last = self._rows_of_blocks(shard)
        into = self._stored(shard, last - first, -(-in_size // width))
        shape = (-(-outputs // height), -(-inputs // width))
        return Target(into, shape, shard.dim, first if shard.dim == 0 else shard.start // width)

    def of_outputs(self, out_size: int) -> torch.Tensor:
        """float32 [out, groups]: every output's scales."""
        found = None
        for shard, scales in self._parts.values():
            rows = scales[:, None] if self._block is None else scales
            if found is None:
                found = torch.empty(out_size, rows.shape[1])
            count = shard.rows.stop - shard.rows.start
            if self._block is None:
                found[shard.rows] = rows
                continue
            skipped = (shard.start if shard.dim == 0 else 0) % self._block[0]
            found[shard.rows] = rows.repeat_interleave(self._block[0], dim=0)[skipped : skipped + count]
        assert found is not None, "no matrix was asked for"
        return found

    def _rows_of_blocks(self, shard: LinearShard) -> tuple[int, int]:
        """Rows of blocks that hold the shard's outputs."""
        assert self._block is not None
        start, count = shard.start if shard.dim == 0 else 0, shard.rows.stop - shard.rows.start
        return start // self._block[0], -(-(start + count) // self._block[0])

    def _stored(self, shard: LinearShard, *shape: int) -> torch.Tensor:
        """The same at each call."""
        if shard.name not in self._parts:
            self._parts[shard.name] = shard, torch.empty(shape)
        return self._parts[shard.name][1]
