"""How the battery counts launches that made the host wait, with stand-ins for torch's warnings."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from benchmarks.gpu.models.engine import Engine


class Runner:
    """Waits once in each launch."""

    def launch(self, plan: Any) -> None:
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    def collect(self, launched: Any) -> None:
        pass


def test_what_torch_says_of_the_mode_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: warnings.warn(said, stacklevel=1))
    engine: Any = Engine.__new__(Engine)
    engine.runner, engine._on_gpu = Runner(), True
    engine._next, engine._checked = (lambda: None), (lambda result: None)
    assert engine.waits(3) == 3
