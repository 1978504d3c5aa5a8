"""Operations by the C++ kernels: float32 on a CPU. Shapes that the kernels do not take fall back to torch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p
from functools import partial

import torch

from mmserve.model_backend.layers.ops import Activation, FeedForward, SelfAttention
from mmserve.model_backend.platforms.cpu.linear.matrix import Matrix, address
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear
from mmserve.model_backend.platforms.torch_ops import TorchOps

_VECTOR = 8
"""Numbers in a vector of the kernels, which compute whole vectors only."""
ACTIVATIONS = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1, "gelu_new": 1, "gelu": 2, "quick_gelu": 3}
"""Activations that the kernels compute, with the kernels' numbers for them."""
_SHORT = 4
"""Added to an activation's number: faster, for results that are rounded to bfloat16."""


def activation_number(name: str, *, rounds: bool) -> int:
    """The kernels' number for an activation in ``ACTIVATIONS``. ``rounds``: its result is rounded to bfloat16."""
    return ACTIVATIONS[name] + (_SHORT if rounds else 0)


class _Residual(ctypes.Structure):
    _fields_ = (*((name, c_void_p) for name in ("norm", "norm_bias", "scale")), ("eps", c_float))


class _FeedForward(ctypes.Structure):
    _fields_ = (
        ("residual", _Residual),
        *((name, Matrix) for name in ("up", "down")),
        *((name, c_int64) for name in ("activation", "gated")),
    )


class _SelfAttention(ctypes.Structure):
    _fields_ = (
        ("residual", _Residual),
        *((name, Matrix) for name in ("qkv", "out")),
        *((name, c_int64) for name in ("heads", "rounds")),
    )


class KernelOps(TorchOps):
    """See ``layers.ops.Ops``. A row's result does not depend on the other rows.

    ``rounds``: the inputs of products are rounded to bfloat16. Those in ``encoder_attention`` are rounded here, and
    activations, which are inputs of a product, are computed no more exactly than that needs.
    """

    def __init__(self, kernels: ctypes.CDLL, *, rounds: bool = False) -> None:
        self._kernels, self._rounds = kernels, rounds

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.shape[-1] % _VECTOR:
            return super().rms_norm(x, weight, eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        self._kernels.mm_rms_norm(x.data_ptr(), weight.data_ptr(), eps, out.data_ptr(), *x.shape)
        return out

    def head_norm_(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        if x.shape[-1] % _VECTOR:
            return super().head_norm_(x, weight, eps)
        self._kernels.mm_head_norm(x.data_ptr(), x.stride(0), weight.data_ptr(), eps, *x.shape)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        size = x.shape[-1]
        if size % _VECTOR:
            return super().layer_norm(x, weight, bias, eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        addresses = (x.data_ptr(), weight.data_ptr(), bias.data_ptr())
        self._kernels.mm_layer_norm(*addresses, eps, out.data_ptr(), x.numel() // size, size)
        return out

    def add_scaled_(self, x: torch.Tensor, addend: torch.Tensor, scale: torch.Tensor) -> None:
        if not (x.is_contiguous() and addend.is_contiguous()):
            return super().add_scaled_(x, addend, scale)
        self._kernels.mm_add_scaled(x.data_ptr(), addend.data_ptr(), scale.data_ptr(), *x.shape)

    def rotary_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, adjacent: bool = False) -> None:
        size = 2 * cos.shape[-1]
        self._kernels.mm_rotate(x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), *x.shape, size, adjacent)

    def activation(self, name: str) -> Activation:
        return partial(self._activate, name) if name in ACTIVATIONS else super().activation(name)

    def act_and_mul(self, name: str) -> Activation:
        return partial(self._act_and_mul, name) if name in ACTIVATIONS else super().act_and_mul(name)

    def feed_forward_(self, x: torch.Tensor, block: FeedForward) -> None:
        up, down, scale = block.up, block.down, block.scale
        if not (
            x.is_contiguous()
            and isinstance(up.method, PackedLinear)
            and isinstance(down.method, PackedLinear)
            and block.activation in ACTIVATIONS
            and x.shape[1] % _VECTOR == down.method.in_size % _VECTOR == 0
        ):
            return super().feed_forward_(x, block)
        structure = _FeedForward(
            _Residual(*map(address, (block.norm_weight, block.norm_bias, scale)), block.norm_eps),
            Matrix.of(up),
            Matrix.of(down),
            self._number(block.activation),
            block.gated,
        )
        self._kernels.mm_feed_forward(ctypes.byref(structure), x.data_ptr(), len(x))

    def self_attention_(self, x: torch.Tensor, lengths: Sequence[int], block: SelfAttention) -> None:
        qkv, out = block.qkv, block.out
        if not (
            x.is_contiguous()
            and isinstance(qkv.method, PackedLinear)
            and isinstance(out.method, PackedLinear)
            and x.shape[1] % _VECTOR == out.method.in_size // block.num_heads % _VECTOR == 0
        ):
            return super().self_attention_(x, lengths, block)
        structure = _SelfAttention(
            _Residual(*map(address, (block.norm_weight, block.norm_bias, block.scale)), block.norm_eps),
            Matrix.of(qkv),
            Matrix.of(out),
            block.num_heads,
            self._rounds,
        )
        counts = (c_int64 * len(lengths))(*lengths)
        self._kernels.mm_self_attention(ctypes.byref(structure), x.data_ptr(), ctypes.addressof(counts), len(counts))

    def encoder_attention(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        rows, width = qkv.shape
        size = width // 3
        if size // num_heads % _VECTOR:
            return super().encoder_attention(qkv, num_heads, lengths)
        qkv, out, counts = qkv.contiguous(), torch.empty(rows, size), torch.tensor(lengths)
        addresses = (qkv.data_ptr(), out.data_ptr(), counts.data_ptr())
        self._kernels.mm_encoder_attention(*addresses, len(counts), num_heads, size // num_heads, self._rounds)
        return out

    def _activate(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """In place where the kernels compute it."""
        if not x.is_contiguous():
            return super().activation(name)(x)
        size = x.shape[-1]
        self._kernels.mm_activation(x.data_ptr(), x.numel() // size, size, self._number(name))
        return x

    def _act_and_mul(self, name: str, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rows, width = x.shape
        out = torch.empty(rows, width // 2)
        self._kernels.mm_act_and_mul(x.data_ptr(), out.data_ptr(), rows, width // 2, self._number(name))
        return out

    def _number(self, name: str) -> int:
        return activation_number(name, rounds=self._rounds)
