"""A GPU: attention by Triton's kernels, all else by torch, a KV cache sized by free memory, the arena pinned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.fields import AttentionChoice, Quantization
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import Card, tower_nbytes
from mmserve.ipc.arena import Arena
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.pictures.resize import PictureResize
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu, offers_triton, triton_attention
from mmserve.model_backend.platforms.cuda.graphs.capture import CudaCapture
from mmserve.model_backend.platforms.cuda.graphs.decode import CapturedDecodes
from mmserve.model_backend.platforms.cuda.linear import ResidualLinear
from mmserve.model_backend.platforms.cuda.pinned import PinnedArena
from mmserve.model_backend.platforms.cuda.row_copies import CudaRowCopies
from mmserve.model_backend.platforms.cuda.staged import staged_copies
from mmserve.model_backend.platforms.cuda.transfers import CudaTransfers
from mmserve.model_backend.platforms.decode_graphs import DecodeGraphs, GraphParts
from mmserve.model_backend.platforms.reference import PlainLinear, TorchPlatform
from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.model_backend.row_copies import RowCopies
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.weight_copy import Copy
from mmserve.runtime.errors import StartupError

_MORE_FOR_IMAGES_NBYTES = 512 << 20
"""That a visual server may take beside its room."""


logger = logging.getLogger(__name__)


class CudaPlatform(TorchPlatform):
    """See ``interface.Platform``. ``attention``: the option of that name."""

    plain_linear = ResidualLinear

    def __init__(self, device: torch.device, dtype: torch.dtype, attention: AttentionChoice = "auto") -> None:
        super().__init__(device, dtype)
        self._attention = attention
        self._room_nbytes = 0
        """Of a visual server's tower, kept by the allocator."""

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def ops(self) -> Ops:
        if not offers_triton(self._attention, Gpu.of(self.device)):
            return super().ops()
        from mmserve.model_backend.platforms.cuda.ops import TritonOps

        return TritonOps(self.device)

    def layer_context(self, tp: TpGroup, quantization: Quantization = "none") -> LayerContext:
        context = super().layer_context(tp, quantization)
        if quantization != "none" or not offers_triton(self._attention, Gpu.of(self.device)):
            return context
        from mmserve.model_backend.platforms.cuda.experts.choice import grouped_experts

        return replace(context, grouped_experts=partial(grouped_experts, self.dtype, self.device))

    def linear_method(self, quantization: Quantization, shape: LinearShape) -> LinearMethod:
        if quantization != "fp8":
            return super().linear_method(quantization, shape)
        from mmserve.model_backend.platforms.cuda.fp8 import forms, linear, trials

        trials.check_fp8(self.device, self.dtype)
        if not (shape.quantizable and linear.sizes_fit(shape)):
            return self._plain(shape)
        return linear.Fp8Linear(linear.PlainSource(shape, self.dtype), forms.BY_ROWS, self.dtype, self.device)

    def embedding_method(self, quantization: Quantization, shape: LinearShape) -> EmbeddingMethod:
        """Rows are looked up, and the head decides much: they stay as they are."""
        if quantization in ("none", "fp8"):
            return self._plain(shape)
        raise StartupError(f"--quantization {quantization} is for a CPU: choose fp8 on a GPU, or leave it out")

    def checkpoint_linear_method(self, scheme: QuantizationScheme, shape: LinearShape) -> LinearMethod:
        if scheme.layout == "gguf":
            raise StartupError(f"a quantised checkpoint ({scheme}) is computed on a CPU alone: add --device cpu")
        from mmserve.model_backend.platforms.cuda import coded_linear
        from mmserve.model_backend.platforms.cuda.fp8 import linear, trials

        form = linear.form_of(scheme, shape)
        if form is not None and trials.works_for_checkpoints(Gpu.of(self.device), self.dtype, form):
            return linear.Fp8Linear(linear.StoredSource(scheme, shape), form, self.dtype, self.device)
        coded_linear.check_coded(self.device, self.dtype, float8=scheme.layout == "fp8")
        return coded_linear.CodedLinear(scheme, shape, self.device)

    def _plain(self, shape: LinearShape) -> PlainLinear:
        return self.plain_linear(shape, self.dtype, self.device)

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> AttentionBackend[Any]:
        if self._attention == "flashinfer":
            from mmserve.model_backend.platforms.cuda.flashinfer.choice import flashinfer_attention

            capability = Gpu.of(self.device).capability
            return flashinfer_attention(spec, self.dtype, kv_dtype, capability, self.transfers())
        found = triton_attention(self._attention, spec, self.dtype, kv_dtype, Gpu.of(self.device))
        return super().attention(spec, kv_dtype) if found is None else found

    def with_fastest_sums(self, tp: TpGroup) -> TpGroup:
        if tp.on_host:
            return tp
        from mmserve.model_backend.platforms.cuda.sums.fastest import fastest_sums

        return fastest_sums(tp, self.dtype, self.device)

    def sampling(self) -> TokenSampling:
        if not offers_triton(self._attention, Gpu.of(self.device)):
            return super().sampling()
        from mmserve.model_backend.platforms.cuda.sampling import working_sampling

        return working_sampling(self.transfers())

    def transfers(self) -> Transfers:
        return CudaTransfers(self.device)

    def picture_resize(self) -> PictureResize | None:
        if not offers_triton(self._attention, Gpu.of(self.device)):
            return None
        from mmserve.model_backend.platforms.cuda.picture_resize import working_resize

        return working_resize(self.transfers())

    def weight_copies(self) -> Copy:
        return staged_copies(self.device)

    def decode_graphs(self, parts: GraphParts) -> DecodeGraphs | None:
        if not parts.rungs:
            return None
        captures = parts.model.is_capturable and parts.attention.supports_graphs
        if parts.tp.worst([not captures])[0]:  # kernels may have failed on one rank's GPU alone
            logger.info("steps are computed launch by launch: graphs are for mmserve's decoders on Triton's kernels")
            return None
        return CapturedDecodes(parts, self.transfers(), CudaCapture(self.device))

    def release_cached_memory(self) -> None:
        torch.cuda.empty_cache()
        if self._room_nbytes:
            try:
                self._take_room()
            except torch.OutOfMemoryError:
                logger.warning("the room for pictures could not be taken again: other processes have it")

    def _take_room(self) -> None:
        """In one piece."""
        room = torch.empty(self._room_nbytes, dtype=torch.uint8, device=self.device)
        del room  # the allocator keeps it

    @property
    def num_devices(self) -> int:
        return torch.cuda.device_count()

    def device_memory(self) -> Card:
        free_nbytes, total_nbytes = torch.cuda.mem_get_info(self.device)
        return Card(total_nbytes, free_nbytes)

    def peak_nbytes(self, work: Callable[[], object]) -> int:
        self.release_cached_memory()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        work()
        torch.cuda.synchronize(self.device)
        peak = torch.cuda.max_memory_reserved(self.device)
        self.release_cached_memory()
        return peak - before

    def prefault_for_images(self, deployment: Deployment, max_images: int) -> None:
        """Ranks that start later see the room as taken. A batch that needs more fails alone, instead of a rank."""
        vision = deployment.model.vision
        assert vision is not None, "a text model has no vision tower"
        patches = deployment.max_image_rows * vision.patches_per_row
        sizes = vision.hidden_size, vision.intermediate_size, self.dtype.itemsize
        self._room_nbytes = tower_nbytes(max_images, patches, *sizes)
        self._take_room()
        most = torch.cuda.memory_reserved(self.device) + _MORE_FOR_IMAGES_NBYTES
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / self.device_memory().total_nbytes), self.device)

    def use_in_thread(self) -> None:
        torch.cuda.set_device(self.device)

    def row_copies(self, arena: Arena | None) -> RowCopies:
        return CudaRowCopies(self.device, None if arena is None else PinnedArena(arena, self.device))
