"""Everything a platform provides, in plain torch: for any device and dtype, and the reference for faster platforms."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
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
from mmserve.model_backend.layers.ops import Activation, Addend, FeedForward, GatedProduct, Ops, Product
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.models.interface import DecoderModel, DeepStackRows
from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.interface import ForwardExecutor
from mmserve.model_backend.platforms.sampling import TokenSampling, TorchSampling
from mmserve.model_backend.row_copies import PlainRowCopies, RowCopies
from mmserve.model_backend.transfers import PlainTransfers, Transfers
from mmserve.model_backend.weight_copy import Copy, plain_copy
from mmserve.runtime.errors import StartupError


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class TorchOps:
    """See ``layers.ops.Ops``."""

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)

    def head_norm_(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        x.copy_(self.rms_norm(x, weight, eps))

    def add_normed_(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, then: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        hidden.add_(x if weight is None else self.rms_norm(x, weight, eps))
        return hidden if then is None else self.rms_norm(hidden, then, eps)

    def normed_product(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, product: Product, addend: Addend | None = None
    ) -> torch.Tensor:
        if addend is None:
            normed = self.rms_norm(hidden, weight, eps)
        else:
            normed = self.add_normed_(hidden, addend.values, addend.norm_weight, weight, eps)
        return product.method.apply(normed, product.bias)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def add_scaled_(self, x: torch.Tensor, addend: torch.Tensor, scale: torch.Tensor) -> None:
        x.addcmul_(addend, scale)

    def rotary_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, adjacent: bool = False) -> None:
        cos, sin = cos[:, None], sin[:, None]
        turning = x[..., : 2 * cos.shape[-1]]
        first, second = (turning[..., ::2], turning[..., 1::2]) if adjacent else turning.chunk(2, dim=-1)
        rotated = (first * cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(rotated)

    def activation(self, name: str) -> Activation:
        if name not in _ACTIVATIONS:
            raise StartupError(f"the model's activation {name} is not supported; known: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def act_and_mul(self, name: str) -> Activation:
        return partial(_act_and_mul, self.activation(name))

    def gated_product(self, name: str) -> GatedProduct:
        return partial(_gated_product, self.act_and_mul(name))

    def feed_forward_(self, x: torch.Tensor, block: FeedForward) -> None:
        act = (self.act_and_mul if block.gated else self.activation)(block.activation)
        up, down = block.up, block.down
        for rows in torch.split(x, block.max_rows or max(1, len(x))):
            inner = act(up.method.apply(self._normed(rows, block), up.bias))
            if block.scale is None:
                down.method.apply(inner, down.bias, rows)
            else:
                self.add_scaled_(rows, down.method.apply(inner, down.bias), block.scale)

    def _normed(self, x: torch.Tensor, block: FeedForward) -> torch.Tensor:
        if block.norm_bias is None:
            return self.rms_norm(x, block.norm_weight, block.norm_eps)
        return self.layer_norm(x, block.norm_weight, block.norm_bias, block.norm_eps)

    def encoder_attention(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        """Neighbouring sequences of one length are computed together."""
        outs, start = [], 0
        for length, alike in groupby(lengths):
            end = start + length * len(list(alike))
            heads = (3, num_heads, qkv.shape[1] // 3 // num_heads)
            q, k, v = qkv[start:end].view(-1, length, *heads).permute(2, 0, 3, 1, 4)
            outs.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1).flatten(1))
            start = end
        return torch.cat(outs)


def _act_and_mul(act: Activation, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return act(gate).mul_(up)


def _gated_product(
    act: Activation,
    method: LinearMethod,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    return method.apply(act(x), bias, residual)


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
