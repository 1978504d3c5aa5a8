"""The linear method for matrices of GGUF files. They stay in their bits."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from mmserve.checkpoint.gguf.tensor_types import QUANTIZED, TensorType
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cpu.linear import gguf_weights
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear, free
from mmserve.model_backend.platforms.cpu.linear.quantization import PANEL
from mmserve.runtime.errors import StartupError


class GgufLinear(PackedLinear):
    """See ``LinearMethod``. ``scheme.types``: the format of each of the layer's matrices."""

    format = gguf_weights.FORMAT

    def __init__(self, kernels: ctypes.CDLL, scheme: QuantizationScheme, shape: LinearShape) -> None:
        super().__init__(kernels, shape)
        self._types = {name: QUANTIZED[kind] for name, kind in zip(shape.names, scheme.types, strict=True)}
        self._rows: dict[str, torch.Tensor] = {}
        """As they are in the file: uint8 [outputs, bytes]."""

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        kind, outputs = self._types[shard.name], shard.rows.stop - shard.rows.start
        start = _nbytes(shard, kind, shard.start) if shard.dim == 1 else shard.start
        if shard.name not in self._rows:
            self._rows[shard.name] = self._allocate(shard, outputs, _nbytes(shard, kind, self.in_size))
        shape = (shard.shape[0], _nbytes(shard, kind, shard.shape[1]))
        yield f"{shard.name}.weight", Target(self._rows[shard.name][:outputs], shape, shard.dim, start)

    def _allocate(self, shard: LinearShard, outputs: int, row_nbytes: int) -> torch.Tensor:
        if outputs % PANEL:
            raise StartupError(
                f"{shard.name} has {outputs} outputs on a rank; of a GGUF file multiples of {PANEL} are supported"
            )
        return torch.empty(outputs, row_nbytes, dtype=torch.uint8)

    def finish_loading(self) -> None:
        matrices = [(self._types[name].name, rows) for name, rows in self._rows.items()]
        try:
            self.packed = gguf_weights.pack(matrices)
        except StartupError as error:
            raise StartupError(f"{', '.join(self._rows)}: {error}") from None
        for _, rows in matrices:
            free(rows)
        del self._rows


class GgufEmbedding(GgufLinear):
    """Its rows can be looked up. Vocabularies of any size: the last panel is filled with zeros."""

    def _allocate(self, shard: LinearShard, outputs: int, row_nbytes: int) -> torch.Tensor:
        return torch.zeros(self._padded_size, row_nbytes, dtype=torch.uint8)

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        if self._padded_size == self.out_size:
            return super().apply(x, bias, residual)
        assert bias is None, "an output head has none"
        assert residual is None, "an output head has none"
        x = x.contiguous()
        out = torch.empty(*x.shape[:-1], self._padded_size)
        rows, sizes = x.numel() // self.in_size, (self.in_size, self._padded_size)
        self._kernels.mm_linear(
            x.data_ptr(), self.packed.data_ptr(), self.format, None, out.data_ptr(), rows, *sizes, False
        )
        return out[..., : self.out_size]

    @property
    def _padded_size(self) -> int:
        return -(-self.out_size // PANEL) * PANEL

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """float32."""
        indices = indices.contiguous()
        out = torch.empty(len(indices), self.in_size)
        self._kernels.mm_rows(self.packed.data_ptr(), self.format, indices.data_ptr(), out.data_ptr(), *out.shape)
        return out


def _nbytes(shard: LinearShard, kind: TensorType, inputs: int) -> int:
    """Of so many inputs of a row. Raises StartupError where ranks would divide a block."""
    blocks, rest = divmod(inputs, kind.block)
    if rest:
        raise StartupError(
            f"{shard.name} is stored in blocks of {kind.block} inputs, which ranks must not divide: use another --tp"
        )
    return blocks * kind.nbytes
