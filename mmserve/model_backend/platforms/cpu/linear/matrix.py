"""A linear layer as the C++ kernels get it: the addresses of its weights and bias."""

from __future__ import annotations

import ctypes
from ctypes import c_int64, c_void_p

import torch

from mmserve.model_backend.layers.ops import Product
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear


class Matrix(ctypes.Structure):
    """Keeps neither the weights nor the bias: its owner does."""

    _fields_ = (("panels", c_void_p), ("bias", c_void_p), ("weights", c_int64), ("in_", c_int64), ("out", c_int64))

    @classmethod
    def of(cls, layer: Product) -> Matrix:
        """Of a layer whose method is a ``PackedLinear`` that has finished loading."""
        method = layer.method
        assert isinstance(method, PackedLinear)
        return cls(method.packed.data_ptr(), address(layer.bias), method.format, method.in_size, method.out_size)


def address(tensor: torch.Tensor | None) -> int | None:
    """None is the kernels' null."""
    return None if tensor is None else tensor.data_ptr()
