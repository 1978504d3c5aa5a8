"""A GPU: torch's own operations, a KV cache sized by free memory, the arena pinned for asynchronous copies."""

from __future__ import annotations

import torch

from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.cuda.pinned import pin
from mmserve.model_backend.platforms.reference import TorchPlatform


class CudaPlatform(TorchPlatform):
    """See ``interface.Platform``."""

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device)

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
