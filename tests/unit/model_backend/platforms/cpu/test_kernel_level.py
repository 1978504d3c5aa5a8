"""Both kinds of processes that compute, ranks and visual servers, use the level of ``--kernel-level``."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import mmserve.model_backend.run
import mmserve.visualserver.run
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.model_backend.platforms.cpu import platform
from tests.fakes.pictures.media import fake_process, model_spec, write_preprocessor


class Asked(Exception):
    """Instead of loading kernels."""


@pytest.mark.parametrize(
    ("role", "run"), [("model_backend", mmserve.model_backend.run.run), ("visualserver", mmserve.visualserver.run.run)]
)
def test_a_process_asks_for_the_kernels_of_the_option(
    role: str, run: Callable[[Process], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verified_kernels(fastest: str) -> None:
        raise Asked(fastest)

    monkeypatch.setattr(platform, "verified_kernels", verified_kernels)
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    arena = Arena.create(1 << 14)
    model = model_spec(write_preprocessor(tmp_path), hidden_size=4)
    with pytest.raises(Asked, match=r"^avx512$"):
        run(fake_process(role, tmp_path, arena, model, kernel_level="avx512"))
    arena.close()
