"""The platform of a device, and what is said where the device is not there."""

from __future__ import annotations

import pytest
import torch

from mmserve.model_backend.platforms.device import platform_for
from mmserve.runtime.errors import StartupError


def test_cuda_without_a_gpu_names_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(StartupError, match="--device cpu"):
        platform_for("cuda", "bfloat16")


@pytest.mark.parametrize(("rank", "gpu"), [(0, 0), (1, 1), (2, 0)])
def test_ranks_share_gpus(rank: int, gpu: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert platform_for("cuda", "bfloat16", rank).device == torch.device("cuda", gpu)
