"""Fills layers with random numbers as the loader does."""

from __future__ import annotations

import torch

from mmserve.checkpoint.quantization.read import read_scheme
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.target import LinearShard
from tests.fakes.formats.quantized_checkpoints import Format


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def scheme_of(form: Format) -> QuantizationScheme:
    scheme = read_scheme({"quantization_config": form.config})
    assert scheme is not None
    return scheme


def loaded(layer: LinearMethod, form: Format, shards: dict[str, LinearShard]) -> torch.Tensor:
    """Returns the matrix that the layer stands for, in float64. The i-th matrix has numbers i**3 times as large."""
    parts = []
    for factor, (name, shard) in enumerate(shards.items(), 1):
        tensors, weight = form.quantize(factor**3 * random(*shard.shape), 0)
        for full_name, target in layer.targets(shard):
            suffix = full_name.removeprefix(f"{name}.")
            stored = tensors[suffix if suffix in tensors else f"{suffix}_inv"].reshape(target.shape)
            target.into.copy_(stored.narrow(target.dim, target.start, target.into.shape[target.dim]))
        rows = shard.rows.stop - shard.rows.start
        size = rows if shard.dim == 0 else shard.shape[1] // 2
        parts.append(weight.narrow(shard.dim, shard.start, size))
    layer.finish_loading()
    return torch.cat(parts).double()
