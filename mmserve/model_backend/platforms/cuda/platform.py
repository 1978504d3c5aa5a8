"""A GPU: attention by Triton's kernels, all else by torch, a KV cache sized by free memory, the arena pinned."""

from __future__ import annotations

from typing import Any

import torch

from mmserve.config.fields import AttentionChoice
from mmserve.ipc.arena import Arena
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec
from mmserve.model_backend.layers.ops import Ops
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu, offers_triton, triton_attention
from mmserve.model_backend.platforms.cuda.linear import ResidualLinear
from mmserve.model_backend.platforms.cuda.pinned import pin
from mmserve.model_backend.platforms.cuda.transfers import CudaTransfers
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.model_backend.transfers import Transfers


class CudaPlatform(TorchPlatform):
    """See ``interface.Platform``. ``attention``: the option of that name."""

    plain_linear = ResidualLinear

    def __init__(self, device: torch.device, dtype: torch.dtype, attention: AttentionChoice = "auto") -> None:
        super().__init__(device, dtype)
        self._attention = attention

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

    def ops(self) -> Ops:
        if not offers_triton(self._attention, Gpu.of(self.device)):
            return super().ops()
        from mmserve.model_backend.platforms.cuda.ops import TritonOps

        return TritonOps(self.device)

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> AttentionBackend[Any]:
        found = triton_attention(self._attention, spec, self.dtype, kv_dtype, Gpu.of(self.device))
        return super().attention(spec, kv_dtype) if found is None else found

    def sampling(self) -> TokenSampling:
        if not offers_triton(self._attention, Gpu.of(self.device)):
            return super().sampling()
        from mmserve.model_backend.platforms.cuda.sampling import working_sampling

        return working_sampling(self.transfers())

    def transfers(self) -> Transfers:
        return CudaTransfers(self.device)

    def release_cached_memory(self) -> None:
        torch.cuda.empty_cache()

    def free_memory_nbytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def pin(self, arena: Arena) -> None:
        pin(arena, self.device)

    def wait_for_copies(self) -> None:
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(torch.cuda.current_stream(self.device))
        done.synchronize()
