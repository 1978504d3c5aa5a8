"""All layers of a decoder in one call of the C++ kernels: 270 calls less for a step of one token."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_float, c_int64, c_void_p

import torch

from mmserve.model_backend.layers.rotary import Angles
from mmserve.model_backend.models.interface import DecoderLayerWeights, DecoderWeights, DeepStackRows
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention, PagedCpuMetadata
from mmserve.model_backend.platforms.cpu.linear.matrix import Matrix, address
from mmserve.model_backend.platforms.cpu.linear.packing import PackedLinear
from mmserve.model_backend.platforms.cpu.memory import MAX_MLP_ROWS
from mmserve.model_backend.platforms.cpu.ops import ACTIVATIONS, activation_number


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("after_attention_norm", c_void_p),
        ("after_mlp_norm", c_void_p),
        ("query_rope", c_int64),
        ("key_rope", c_int64),
        ("window", c_int64),
        ("whole_images", c_int64),
        *((name, Matrix) for name in ("qkv", "out", "gate_up", "down")),
    )

    @classmethod
    def of(cls, layer: DecoderLayerWeights) -> _Layer:
        return cls(
            attention_norm=layer.attention_norm.data_ptr(),
            mlp_norm=layer.mlp_norm.data_ptr(),
            q_norm=address(layer.q_norm),
            k_norm=address(layer.k_norm),
            after_attention_norm=address(layer.after_attention_norm),
            after_mlp_norm=address(layer.after_mlp_norm),
            query_rope=-1 if layer.rope is None else layer.rope.queries,
            key_rope=-1 if layer.rope is None else layer.rope.keys,
            window=layer.mask.window or 0,
            whole_images=layer.mask.whole_images,
            qkv=Matrix.of(layer.qkv),
            out=Matrix.of(layer.out),
            gate_up=Matrix.of(layer.gate_up),
            down=Matrix.of(layer.down),
        )


class _Shape(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("layers", "hidden", "heads", "kv_heads", "dim", "rotary")),
        *((name, c_int64) for name in ("adjacent", "mlp_rows", "activation", "cache")),
        *((name, c_float) for name in ("eps", "attention_scale")),
    )


class Step(ctypes.Structure):
    """Keeps none of its tensors."""

    _fields_ = (
        *((name, c_void_p) for name in ("hidden", "cos", "sin", "kv")),
        *((name, c_void_p) for name in ("slot_mapping", "block_tables", "tiles", "logits_indices")),
        *((name, c_int64) for name in ("rows", "num_tiles", "num_logits", "table_stride", "kv_stride")),
        *((name, c_void_p) for name in ("image_ends", "added", "added_rows")),
        *((name, c_int64) for name in ("num_added", "layers_with_added")),
    )


class CompiledDecoder:
    """A ``ForwardExecutor`` that computes the same numbers as the layers one by one, to the bit.

    It keeps the addresses of the weights, which must not be replaced afterwards. ``rounds``: as in ``KernelOps``.
    """

    rungs: Sequence[int] = ()

    def __init__(self, kernels: ctypes.CDLL, weights: DecoderWeights, *, rounds: bool = False) -> None:
        self._decode = kernels.mm_decoder
        self._weights, self.rotary = weights, weights.rotary
        self.layers = (_Layer * len(weights.layers))(*map(_Layer.of, weights.layers))
        heads, kv_heads, dim, *_ = weights.heads
        sizes = (len(weights.layers), weights.hidden_size, heads, kv_heads, dim, self.rotary.size)
        assert isinstance(weights.attention, PagedCpuAttention)
        activation = activation_number(weights.activation, rounds=rounds)
        kinds = (self.rotary.adjacent, MAX_MLP_ROWS, activation, weights.attention.cache_format)
        self.shape = ctypes.byref(_Shape(*sizes, *kinds, weights.eps, weights.heads.scale))

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: PagedCpuMetadata,
        logits_indices: torch.Tensor,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        """See ``DecoderModel.forward``. Returns a view of ``hidden``."""
        angles = self.rotary.angles(positions)
        step = step_of(hidden, angles, kv_cache, metadata, logits_indices)
        if deepstack is not None:
            step.added, step.added_rows = deepstack.values.data_ptr(), deepstack.rows.data_ptr()
            step.layers_with_added, step.num_added, _ = deepstack.values.shape
        self._decode(self.layers, self.shape, ctypes.byref(step))
        return hidden[: len(logits_indices)]


def step_of(
    hidden: torch.Tensor,
    angles: Angles,
    kv_cache: torch.Tensor,
    metadata: PagedCpuMetadata,
    logits_indices: torch.Tensor,
) -> Step:
    """Without DeepStack."""
    tiles, block_tables, slot_mapping, image_ends = metadata
    tensors = (hidden, *angles, kv_cache, slot_mapping, block_tables, tiles, logits_indices)
    sizes = (
        len(hidden),
        len(tiles),
        len(logits_indices),
        block_tables.shape[1],
        kv_cache.stride(0) * kv_cache.itemsize,
    )
    step = Step(*(tensor.data_ptr() for tensor in tensors), *sizes)
    if image_ends is not None:
        step.image_ends = image_ends.data_ptr()
    return step


def compile_decoder(kernels: ctypes.CDLL, weights: DecoderWeights, *, rounds: bool = False) -> CompiledDecoder | None:
    """None if the kernels cannot compute every part of this decoder in one call. ``rounds``: as in ``KernelOps``."""
    linears = (linear for layer in weights.layers for linear in (layer.qkv, layer.out, layer.gate_up, layer.down))
    compilable = (
        weights.tp_size == 1
        and isinstance(weights.attention, PagedCpuAttention)
        and weights.activation in ACTIVATIONS
        and weights.hidden_size % 8 == weights.intermediate_size % 8 == 0
        and all(isinstance(linear.method, PackedLinear) for linear in linears)
    )
    return CompiledDecoder(kernels, weights, rounds=rounds) if compilable else None
