"""All layers of a Llama decoder in one call of the C++ kernels: a step of one token is 270 calls less.

Knows addresses and sizes, and keeps the tensors behind them; the model's layers must not replace theirs afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from typing import NamedTuple

import torch

from mmserve.model_backend.platforms.cpu import kernels


class Weights(NamedTuple):
    """Of one product: packed [out, in], and its bias [out]."""

    panels: torch.Tensor
    bias: torch.Tensor | None
    in_size: int


class LayerWeights(NamedTuple):
    """Of one layer; the norms' are [hidden]."""

    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv: Weights
    mixed: Weights
    gate_up: Weights
    down: Weights


class DecoderShape(NamedTuple):
    """``mlp_rows``: rows of which an MLP's inner values are in memory at once."""

    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_rows: int
    eps: float


class _Matrix(ctypes.Structure):
    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("weights", c_int64), ("in_", c_int64), ("out", c_int64))

    @classmethod
    def of(cls, weights: Weights) -> _Matrix:
        panels, bias, in_size = weights
        bias_at = None if bias is None else bias.data_ptr()
        return cls(panels.data_ptr(), bias_at, kernels.stored_as(panels), in_size, len(panels) * kernels.PANEL)


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        *((name, _Matrix) for name in ("qkv", "mixed", "gate_up", "down")),
    )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "mlp_rows")),
        ("eps", c_float),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("hidden", "cos", "sin", "kv", "slots", "tables", "tiles", "wanted")),
        *((name, c_int64) for name in ("rows", "num_tiles", "num_wanted", "table_stride", "kv_stride")),
    )


class DecoderLayers:
    """The same numbers as its layers one by one, to the bit."""

    def __init__(self, layers: Sequence[LayerWeights], shape: DecoderShape) -> None:
        self._weights = layers
        self._layers = (_Layer * len(layers))(
            *(
                _Layer(norm.data_ptr(), mlp_norm.data_ptr(), *map(_Matrix.of, products))
                for norm, mlp_norm, *products in layers
            )
        )
        self._shape = _Shape(len(layers), *shape)

    def __call__(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        kv: torch.Tensor,
        layout: kernels.Tiles,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """[T, hidden] -> [S, hidden], a view of it, for the ascending rows int64 [S]; angles [T, dim / 2] each; kv:
        [layers, blocks, tokens, 2, kv_heads, dim]."""
        cos, sin = angles
        tensors = (hidden, cos, sin, kv, layout.kv_slots, layout.tables, layout.tiles, wanted)
        sizes = (len(hidden), len(layout.tiles), len(wanted), layout.tables.shape[1], kv.stride(0))
        step = _Step(*(tensor.data_ptr() for tensor in tensors), *sizes)
        kernels.decode(self._layers, self._shape, step)
        return hidden[: len(wanted)]
