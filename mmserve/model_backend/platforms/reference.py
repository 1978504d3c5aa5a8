"""Everything a platform provides, in plain torch: for any device and dtype, and the reference for faster platforms."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import torch
import torch.nn.functional as F

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.fields import KernelWays, Quantization
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import Card
from mmserve.ipc.arena import Arena
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec, StepLimits
from mmserve.model_backend.attention.sdpa import SdpaAttention
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.models.interface import DecoderModel, DeepStackRows
from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.interface import ForwardExecutor
from mmserve.model_backend.platforms.sampling import TokenSampling, TorchSampling
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.model_backend.row_copies import PlainRowCopies, RowCopies
from mmserve.model_backend.transfers import PlainTransfers, Transfers
from mmserve.model_backend.weight_copy import Copy, plain_copy
from mmserve.runtime.errors import StartupError


class PlainLinear:
    """Unquantized weights [out, in] as the checkpoint stores them. See ``layers.linear_method.EmbeddingMethod``."""

    adds_residual = True

    def __init__(self, shape: LinearShape, dtype: torch.dtype, device: torch.device) -> None:
        self.weight = torch.empty(shape.out_size, shape.in_size, dtype=dtype, device=device)
        self.weight[shape.used :].zero_()

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        yield f"{shard.name}.weight", Target(self.weight[shard.rows], shard.shape, shard.dim, shard.start)

    def finish_loading(self) -> None:
        pass

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = F.linear(x, self.weight, bias)
        return out if residual is None else residual.add_(out)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return F.embedding(indices, self.weight)


class EagerExecutor:
    """Runs a model layer by layer."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        return self._model.forward(hidden, positions, kv_cache, metadata, logits_indices, deepstack)


class TorchPlatform:
    """See ``interface.Platform``. Its process set-up does nothing, apart from torch's own threads."""

    plain_linear: type[PlainLinear] = PlainLinear
    """Of unquantized weights."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    @property
    def device_name(self) -> str:
        return str(self.device)

    def ops(self) -> Ops:
        return TorchOps()

    def linear_method(self, quantization: Quantization, shape: LinearShape) -> LinearMethod:
        return self.embedding_method(quantization, shape)

    def embedding_method(self, quantization: Quantization, shape: LinearShape) -> EmbeddingMethod:
        if quantization != "none":
            raise StartupError("--quantization needs a C++ compiler on this machine (c++ or g++): install one")
        return self.plain_linear(shape, self.dtype, self.device)

    def checkpoint_linear_method(self, scheme: QuantizationScheme, shape: LinearShape) -> LinearMethod:
        raise StartupError(
            f"a quantised checkpoint ({scheme}) needs a CPU and the C++ kernels, so a C++ compiler (c++ or g++)"
        )

    def checkpoint_embedding_method(self, scheme: QuantizationScheme, shape: LinearShape) -> EmbeddingMethod:
        if scheme.layout == "gguf":
            self.checkpoint_linear_method(scheme, shape)
        names = ", ".join(shape.names)
        raise StartupError(f"{names} is quantised, which is supported in layers alone, or in GGUF files")

    def layer_context(self, tp: TpGroup, quantization: Quantization = "none") -> LayerContext:
        return LayerContext(
            ops=self.ops(),
            linear_method=partial(self.linear_method, quantization),
            embedding_method=partial(self.embedding_method, quantization),
            dtype=self.dtype,
            device=self.device,
            tp=tp,
        )

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> AttentionBackend[Any]:
        return SdpaAttention(spec, self.dtype, self.device, self.transfers())

    def executor(self, model: DecoderModel, limits: StepLimits) -> ForwardExecutor:
        return EagerExecutor(model)

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        return None

    def with_fastest_sums(self, tp: TpGroup) -> TpGroup:
        return tp

    def sampling(self) -> TokenSampling:
        return TorchSampling(self.transfers())

    def transfers(self) -> Transfers:
        return PlainTransfers(self.device)

    def picture_resize(self) -> PictureResize | None:
        return None

    def weight_copies(self) -> Copy:
        return plain_copy

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device).zero_()

    def release_cached_memory(self) -> None:
        pass

    @property
    def num_devices(self) -> int:
        return 1

    def device_memory(self) -> Card:
        memory = psutil.virtual_memory()
        return Card(int(memory.total), int(memory.available))

    def peak_nbytes(self, work: Callable[[], object]) -> int:
        work()
        return 0

    def choose_ways(self, ways: KernelWays) -> None:
        pass

    def prefault_for_steps(self, deployment: Deployment) -> None:
        pass

    def prefault_for_images(self, deployment: Deployment, max_images: int) -> None:
        pass

    def row_copies(self, arena: Arena | None) -> RowCopies:
        return PlainRowCopies()

    def place(self, rank: int, size: int) -> None:
        pass

    def use_in_thread(self) -> None:
        pass

    def set_threads(self, count: int) -> None:
        torch.set_num_threads(max(1, count))

    def share_cores(
        self, threads: int, busy_cores: ctypes.Array[ctypes.c_int32], *, among: int = 1, at_least: int = 1
    ) -> None:
        pass

    def release_torch_threads(self) -> None:
        pass
