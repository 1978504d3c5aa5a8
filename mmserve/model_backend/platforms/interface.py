"""What a platform provides: operations, weight formats, attention, the executor of a step, and process set-up.

Chosen once, when a rank or a visual server starts. Layers and models get its parts and do not ask where they run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.fields import KernelWays, Quantization
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import Card
from mmserve.ipc.arena import Arena
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.models.interface import DecoderModel, DeepStackRows
from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.model_backend.row_copies import RowCopies
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.weight_copy import Copy


class ForwardExecutor(Protocol):
    """Runs all layers of a model for one step: eagerly, or as one compiled call."""

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        """As ``DecoderModel.forward``, to the bit."""
        ...


class Platform(Protocol):
    """One device and dtype of this process."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device_name(self) -> str:
        """For people, such as the GPU's model."""
        ...

    # Parts of a model.

    def ops(self) -> Ops: ...

    def linear_method(self, quantization: Quantization, shape: LinearShape) -> LinearMethod:
        """The format of one layer's weights; ``shape.names`` tells which layer.

        Raises StartupError if the platform cannot compute with this quantization or shape.
        """
        ...

    def embedding_method(self, quantization: Quantization, shape: LinearShape) -> EmbeddingMethod:
        """As ``linear_method``, for a matrix whose rows are looked up as well."""
        ...

    def checkpoint_linear_method(self, scheme: QuantizationScheme, shape: LinearShape) -> LinearMethod:
        """For a layer that the checkpoint stores quantized. Raises StartupError as ``linear_method`` does."""
        ...

    def checkpoint_embedding_method(self, scheme: QuantizationScheme, shape: LinearShape) -> EmbeddingMethod:
        """As ``checkpoint_linear_method``, for a matrix whose rows are looked up as well."""
        ...

    def layer_context(self, tp: TpGroup, quantization: Quantization = "none") -> LayerContext:
        """What a model's layers are built with on this platform."""
        ...

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> AttentionBackend[Any]:
        """``kv_dtype``: of the KV cache, which may have fewer bits than ``dtype``."""
        ...

    def executor(self, model: DecoderModel, limits: StepLimits) -> ForwardExecutor:
        """For a model whose weights have finished loading; they must not be replaced afterwards."""
        ...

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        """For the same. None: this device, or this model, captures no steps."""
        ...

    def with_fastest_sums(self, tp: TpGroup) -> TpGroup:
        """The same ranks, which add up in the fastest way that this device has. All of them call it together."""
        ...

    def sampling(self) -> TokenSampling: ...

    def transfers(self) -> Transfers: ...

    def picture_resize(self) -> PictureResize | None:
        """None: pictures are resized before they come to this device. Tests it, so ask once a process."""
        ...

    def choose_ways(self, ways: KernelWays) -> None:
        """Once the model is loaded: compute its products in the fastest way. At the first start this measures.

        Results are the same in all ways. Nothing else of this process may compute meanwhile.
        """
        ...

    def weight_copies(self) -> Copy:
        """From the pages of checkpoints' files to parameters. May take some MiB of the host for good."""
        ...

    # Memory.

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of zeros. Memory of a GPU is allocated now, that of a CPU page by page, when used; the plan has
        compared it with what is free.

        Zeros, because attention multiplies masked positions with a weight of 0, and 0 times NaN would be NaN.
        """
        ...

    def release_cached_memory(self) -> None:
        """Return memory that the allocator keeps for reuse to the device, but for a visual server's room."""
        ...

    @property
    def num_devices(self) -> int:
        """Devices of this kind that ranks take in turn."""
        ...

    def device_memory(self) -> Card:
        """The device's memory now, of all processes; the host's where the device is a CPU."""
        ...

    def peak_nbytes(self, work: Callable[[], object]) -> int:
        """Do the work, and tell how much of the device's memory it took beside what was held before it, at most.

        Memory that the allocator keeps for reuse is returned before and after. 0 where the device is a CPU.
        """
        ...

    def prefault_for_steps(self, deployment: Deployment) -> None:
        """In a rank: take the memory that the largest step computes in, before the first request needs it."""
        ...

    def prefault_for_images(self, deployment: Deployment, max_images: int) -> None:
        """In a visual server: the same for a batch of images and one picture being decoded.

        On a GPU the room stays this process's own, and it takes little more.
        """
        ...

    def row_copies(self, arena: Arena | None) -> RowCopies:
        """Between the arena, which is prepared for it, and the device. Once a process. None: rows come otherwise."""
        ...

    # Threads.

    def place(self, rank: int, size: int) -> None:
        """In one of ``size`` ranks, before it loads: compute on its part of the CPU, and keep its memory there."""
        ...

    def use_in_thread(self) -> None:
        """Make the device that of the calling thread: first in each thread of a rank that waits for it or uses it.

        CUDA would else take memory of GPU 0 for calls that name no device.
        """
        ...

    def set_threads(self, count: int) -> None:
        """Compute with ``count`` threads, at least one."""
        ...

    def share_cores(
        self, threads: int, busy_cores: ctypes.Array[ctypes.c_int32], *, among: int = 1, at_least: int = 1
    ) -> None:
        """Compute with up to ``threads`` threads of the kernels' own, and with fewer while other processes compute.

        Before each operation the number of threads becomes ``threads - sum(busy_cores) / among``, but at least
        ``at_least``. ``among`` is the number of processes that leave cores free together, so each of them leaves its
        part. No effect without kernels.
        """
        ...

    def release_torch_threads(self) -> None:
        """After loading: where kernels compute nearly everything, torch keeps one thread.

        What is left to torch is small, and waiting for its other threads costs more than they save.
        """
        ...
