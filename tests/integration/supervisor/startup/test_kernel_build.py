"""A process builds the kernels while the server starts; it ends when they are built or the start is over."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mmserve.config.resolved.deployment import Deployment
from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.supervisor.startup.kernel_build import building
from tests.fakes.http.http_services import make_deployment
from tests.fakes.pictures.cache import until

# Without a compiler the builder ends at once and the server computes with torch; tests that start a whole server cover
# that. With a compiler, these tests fail if the kernels cannot be built.
pytestmark = pytest.mark.skipif(not compiler.compilers(), reason="no C++ compiler on this machine, so nothing to build")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "mmserve"


@pytest.fixture
def copying_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First in the search path: a compiler that copies the kernels, which other tests compile."""
    found = verified_kernels("auto")
    assert found is not None
    program = tmp_path / "bin" / "c++"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nfor OUT; do :; done\ncp '{found._name}' $OUT\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return make_deployment(str(tmp_path))


@pytest.fixture
def builders() -> Callable[[], list[psutil.Process]]:
    """This process's descendants, without those of other tests."""
    before = psutil.Process().children(recursive=True)
    return lambda: [process for process in psutil.Process().children(recursive=True) if process not in before]


def test_the_shared_object_exists_when_the_builder_ends(
    copying_compiler: None, cache: Path, deployment: Deployment, builders: Callable[[], list[psutil.Process]]
) -> None:
    with building(deployment):
        until(lambda: not builders(), timeout_s=120.0)
        assert [path.suffix for path in cache.iterdir() if path.suffix == ".so"] == [".so"]


def test_an_abandoned_build_leaves_no_process_and_no_files(
    cache: Path, deployment: Deployment, builders: Callable[[], list[psutil.Process]]
) -> None:
    with building(deployment):
        until(lambda: len(builders()) > 1)
    assert not builders()
    assert {path.suffix for path in cache.iterdir()} <= {".lock"}
