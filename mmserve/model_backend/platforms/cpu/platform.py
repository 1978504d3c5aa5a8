"""A CPU: C++ kernels where they can be built, oneDNN and torch otherwise."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, TypeVar

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.fields import KernelLevel, KernelWays, Quantization
from mmserve.config.resolved.deployment import Deployment
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.models.interface import DecoderModel
from mmserve.model_backend.platforms.cpu import memory
from mmserve.model_backend.platforms.cpu import threads as kernel_threads
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.decode import compile_decodes
from mmserve.model_backend.platforms.cpu.decoder import compile_decoder
from mmserve.model_backend.platforms.cpu.linear.checkpoint_linear import CheckpointLinear
from mmserve.model_backend.platforms.cpu.linear.gguf_linear import GgufEmbedding, GgufLinear
from mmserve.model_backend.platforms.cpu.linear.packing import (
    Int4Linear,
    Int8Linear,
    KernelLinear,
    OneDnnLinear,
    PackedLinear,
    RoundedInputs,
    RoundedKernelLinear,
    onednn_works,
)
from mmserve.model_backend.platforms.cpu.ops import KernelOps
from mmserve.model_backend.platforms.cpu.sampling import KernelSampling
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.model_backend.platforms.cpu.ways.choose import choose_ways
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.interface import ForwardExecutor
from mmserve.model_backend.platforms.reference import PlainLinear, TorchPlatform
from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.runtime.memory.allocator import prefault_heap, prefer_huge_pages

_Packed = TypeVar("_Packed", bound=PackedLinear)


class CpuPlatform(TorchPlatform):
    """See ``interface.Platform``.

    With ``dtype`` bfloat16 and ``activations`` float32, the default, weights and the inputs of linear layers are
    rounded to bfloat16; all else, and ``self.dtype``, is float32. ``kernels``: None unless activations are float32, and
    where they cannot be built.
    """

    def __init__(
        self, dtype: torch.dtype, activations: torch.dtype | None = None, kernel_level: KernelLevel = "auto"
    ) -> None:
        activations = activations or (torch.float32 if dtype is torch.bfloat16 else dtype)
        self._rounds = activations is not dtype
        super().__init__(torch.device("cpu"), activations)
        self.kernels: ctypes.CDLL | None = None
        if self.dtype is torch.float32:
            self.kernels = verified_kernels(kernel_level)
        self._threads = 1
        self._linears: list[PackedLinear] = []
        """Made since ways were chosen."""

    def ops(self) -> Ops:
        return super().ops() if self.kernels is None else KernelOps(self.kernels, rounds=self._rounds)

    def linear_method(self, quantization: Quantization, shape: LinearShape) -> LinearMethod:
        quantization = quantization if shape.quantizable else "none"
        if quantization == "int4" and self.kernels is not None:
            return self._noted(Int4Linear(self.kernels, shape))
        if quantization == "none" and self.kernels is None:
            dtype = torch.bfloat16 if self._rounds_for(shape) else self.dtype
            plain = OneDnnLinear if onednn_works(dtype) else PlainLinear
            method = plain(shape, dtype, self.device)
            return RoundedInputs(method) if self._rounds_for(shape) else method
        return self.embedding_method(quantization, shape)

    def embedding_method(self, quantization: Quantization, shape: LinearShape) -> EmbeddingMethod:
        """With int4 an embedding, which is often the head too, has 8 bits. oneDNN's layout has no rows."""
        if self.kernels is not None and quantization != "none":
            return self._noted(Int8Linear(self.kernels, shape))
        if self.kernels is not None:
            return self._noted((RoundedKernelLinear if self._rounds_for(shape) else KernelLinear)(self.kernels, shape))
        if quantization == "none" and self._rounds_for(shape):
            return RoundedInputs(PlainLinear(shape, torch.bfloat16, self.device))
        return super().embedding_method(quantization, shape)

    def checkpoint_linear_method(self, scheme: QuantizationScheme, shape: LinearShape) -> LinearMethod:
        if self.kernels is None:
            return super().checkpoint_linear_method(scheme, shape)
        linear = GgufLinear if scheme.layout == "gguf" else CheckpointLinear
        return self._noted(linear(self.kernels, scheme, shape))

    def _noted(self, linear: _Packed) -> _Packed:
        self._linears.append(linear)
        return linear

    def checkpoint_embedding_method(self, scheme: QuantizationScheme, shape: LinearShape) -> EmbeddingMethod:
        if self.kernels is None or scheme.layout != "gguf":
            return super().checkpoint_embedding_method(scheme, shape)
        return GgufEmbedding(self.kernels, scheme, shape)

    def _rounds_for(self, shape: LinearShape) -> bool:
        """Small matrices whose results decide much stay exact."""
        return self._rounds and shape.quantizable

    def layer_context(self, tp: TpGroup, quantization: Quantization = "none") -> LayerContext:
        return replace(super().layer_context(tp, quantization), max_mlp_rows=memory.MAX_MLP_ROWS)

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> AttentionBackend[Any]:
        if self.kernels is not None and PagedCpuAttention.supports(spec, kv_dtype):
            return PagedCpuAttention(self.kernels, spec, kv_dtype, rounds=self._rounds)
        return super().attention(spec, kv_dtype)

    def executor(self, model: DecoderModel, limits: StepLimits) -> ForwardExecutor:
        weights = model.decoder_weights()
        compiled = None
        if self.kernels is not None and weights is not None:
            compiled = compile_decoder(self.kernels, weights, rounds=self._rounds)
        return compiled or super().executor(model, limits)

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        return None if self.kernels is None else compile_decodes(self.kernels, parts, rounds=self._rounds)

    def sampling(self) -> TokenSampling:
        return super().sampling() if self.kernels is None else KernelSampling(self.kernels)

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        cache = memory.zeros_when_used(shape, dtype)
        prefer_huge_pages(cache.data_ptr(), cache.nbytes)
        return cache

    def choose_ways(self, ways: KernelWays) -> None:
        linears, self._linears = self._linears, []
        if self.kernels is not None:
            choose_ways(self.kernels, self._threads, linears, ways)

    def prefault_for_steps(self, deployment: Deployment) -> None:
        prefault_heap(memory.step_nbytes(deployment))

    def prefault_for_images(self, deployment: Deployment, max_images: int) -> None:
        prefault_heap(memory.images_nbytes(deployment, max_images))

    def place(self, rank: int, size: int) -> None:
        kernel_threads.place(rank, size)

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        if self.kernels is not None:
            self._threads = max(1, count)
            kernel_threads.set_threads(self.kernels, self._threads)

    def share_cores(
        self, threads: int, busy_cores: ctypes.Array[ctypes.c_int32], *, among: int = 1, at_least: int = 1
    ) -> None:
        if self.kernels is not None:
            self._threads = max(self._threads, threads)
            kernel_threads.set_threads(self.kernels, threads)
            kernel_threads.share_cores(self.kernels, busy_cores, among=among, at_least=at_least)

    def release_torch_threads(self) -> None:
        if self.kernels is not None:
            torch.set_num_threads(1)
