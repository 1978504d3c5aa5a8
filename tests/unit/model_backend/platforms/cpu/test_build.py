"""The C++ kernels are built once for each CPU, and used only if they compute what torch computes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmserve.model_backend.platforms.cpu import build
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.model_backend.platforms.reference import TorchOps
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    quick = tuple(option.replace("-O3", "-O0") for option in build._OPTIONS)
    monkeypatch.setattr(build, "_OPTIONS", quick)
    build.loaded.cache_clear()
    yield tmp_path
    build.loaded.cache_clear()


@pytest.fixture
def fresh_self_test() -> Iterator[None]:
    verified_kernels.cache_clear()
    yield
    verified_kernels.cache_clear()


@needs_compiler
def test_with_a_compiler_the_kernels_pass_their_self_test() -> None:
    assert verified_kernels() is not None


def test_kernels_that_compute_wrong_numbers_are_not_used(
    monkeypatch: pytest.MonkeyPatch, fresh_self_test: None, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = SimpleNamespace(mm_linear=lambda *arguments: None)  # leaves the result as it was allocated
    monkeypatch.setattr(build, "loaded", lambda: wrong)
    platform = CpuPlatform(torch.float32)
    assert platform.kernels is None
    assert type(platform.ops()) is TorchOps
    assert "wrong numbers" in caplog.text


def test_only_float32_uses_the_kernels() -> None:
    assert CpuPlatform(torch.bfloat16).kernels is None


def test_without_a_compiler_there_are_no_kernels(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build.loaded() is None


@needs_compiler
def test_built_once_in_the_cache_directory(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.loaded() is not None
    build.loaded.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert build.loaded() is not None
    assert len(list(fresh_cache.glob("mmserve/*.so"))) == 1


@needs_compiler
def test_a_home_that_cannot_be_written_falls_back_to_the_temporary_directory(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    (fresh_cache / "mmserve").write_text("no directory")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(temporary))
    assert build.loaded() is not None
    assert list(temporary.glob("mmserve-*/*.so"))
