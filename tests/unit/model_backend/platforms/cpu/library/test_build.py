"""The C++ kernels are built once for each CPU, and used only if they compute what torch computes."""

from __future__ import annotations

import ctypes
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmserve.model_backend.platforms.cpu.library import build, levels
from mmserve.model_backend.platforms.cpu.linear.packed_weights import TILED
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.self_test import verified_kernels
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.runtime import user_cache
from mmserve.runtime.errors import StartupError
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler

Compiler = Callable[[str, str], None]
FASTEST = levels.of_this_cpu()[0]


@pytest.fixture
def fresh_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build.loaded.cache_clear()
    yield tmp_path
    build.loaded.cache_clear()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Compiler:
    """Adds the only compilers that there are: (name, shell command, in which $OUT is the file to write)."""
    found: dict[str, str] = {}
    monkeypatch.setattr(shutil, "which", found.get)

    def add(name: str, command: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\nfor OUT; do :; done\n{command}\n")
        path.chmod(0o755)
        found[name] = str(path)

    return add


@pytest.fixture(scope="module")
def compiles() -> str:
    """A compiler's command that writes the kernels, which are compiled only once for all tests."""
    return f"cp '{kernels()._name}' $OUT"


@pytest.fixture
def fresh_self_test() -> Iterator[None]:
    verified_kernels.cache_clear()
    yield
    verified_kernels.cache_clear()


@needs_compiler
def test_with_a_compiler_the_kernels_pass_their_self_test() -> None:
    assert verified_kernels("auto") is not None


def test_kernels_that_compute_wrong_numbers_are_not_used(
    monkeypatch: pytest.MonkeyPatch, fresh_self_test: None, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = SimpleNamespace(mm_linear=lambda *arguments: None)  # leaves the result as it was allocated
    monkeypatch.setattr(build, "loaded", lambda level: wrong)
    platform = CpuPlatform(torch.float32)
    assert platform.kernels is None
    assert type(platform.ops()) is TorchOps
    assert "wrong numbers" in caplog.text


class _WithAnother:
    """The kernels, but one of their functions does something else, or nothing."""

    def __init__(self, kernels: ctypes.CDLL, name: str, does: Callable[..., None] = lambda *arguments: None) -> None:
        self._kernels = kernels
        setattr(self, name, does)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernels, name)


@needs_compiler
@pytest.mark.parametrize("name", sorted(set(build._SIGNATURES) - {"mm_set_threads", "mm_leave", "mm_choose_ways"}))
def test_each_function_is_checked(
    name: str, monkeypatch: pytest.MonkeyPatch, fresh_self_test: None, caplog: pytest.LogCaptureFixture
) -> None:
    broken = _WithAnother(kernels(), name)
    monkeypatch.setattr(build, "loaded", lambda level: broken)
    # Otherwise memory that is reused might hold the right result.
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(77))
    verified_kernels.cache_clear()
    assert verified_kernels("auto") is None
    assert f"{name} computes wrong numbers" in caplog.text


@needs_compiler
def test_tile_registers_with_other_bits_leave_the_work_to_the_next_level(
    monkeypatch: pytest.MonkeyPatch, fresh_self_test: None, caplog: pytest.LogCaptureFixture
) -> None:
    right, (first, second) = kernels(), levels.of_this_machine()[:2]
    rounded_otherwise = _WithAnother(
        right,
        "mm_linear",
        lambda x, panels, form, *others: right.mm_linear(x, panels, 4 if form == TILED else form, *others),
    )
    monkeypatch.setattr(levels, "of_this_cpu", lambda fastest="auto": [first, second])
    monkeypatch.setattr(build, "loaded", {first: rounded_otherwise, second: right}.get)
    verified_kernels.cache_clear()
    assert verified_kernels("auto") is right
    assert f"{first.name}, mm_linear computes wrong numbers" in caplog.text


@needs_compiler
def test_the_option_names_the_fastest_level(fresh_self_test: None) -> None:
    """All levels that this CPU has are built for the tests in any case."""
    slowest = levels.of_this_cpu()[-1].name
    platform = CpuPlatform(torch.float32, kernel_level=slowest)  # type: ignore[arg-type]
    assert platform.kernels is not None
    assert f"kernels-{slowest}-" in platform.kernels._name
    other = "avx2" if slowest == "neon" else "neon"
    with pytest.raises(StartupError, match=f"--kernel-level {other} .* choose auto, or one of .*{slowest}"):
        CpuPlatform(torch.float32, kernel_level=other)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_activations_than_float32_do_not_build_the_kernels(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, fresh_self_test: None
) -> None:
    monkeypatch.setattr(build, "loaded", lambda level: pytest.fail("built for nothing"))
    assert CpuPlatform(dtype, dtype).kernels is None


def test_without_a_compiler_there_are_no_kernels(
    fresh_cache: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    """The builder's warning is the only one, however many processes load the kernels."""
    assert build.loaded(FASTEST) is None
    assert not build.build_or_warn()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "no C++ compiler" in warning
    assert "nstall" in warning


@needs_compiler
def test_built_once_in_the_cache_directory(fresh_cache: Path, compiles: str, compiler: Compiler) -> None:
    compiler("c++", compiles)
    assert build.loaded(FASTEST) is not None
    build.loaded.cache_clear()
    compiler("c++", "exit 1")
    assert build.loaded(FASTEST) is not None
    assert len(list(fresh_cache.glob("mmserve/*.so"))) == 1


@needs_compiler
def test_kernels_that_are_built_are_loaded_while_another_process_has_the_lock(
    fresh_cache: Path, compiles: str, compiler: Compiler
) -> None:
    """It may be suspended. A rank that is started again must not wait for it."""
    compiler("c++", compiles)
    assert build.loaded(FASTEST) is not None
    [file] = fresh_cache.glob("mmserve/*.so")
    build.loaded.cache_clear()
    with ThreadPoolExecutor(1) as pool, user_cache.locked(file.with_suffix(".lock")):
        done, _ = wait([pool.submit(build.loaded, FASTEST)], timeout=20)
        assert done, "it waits for the lock"


@needs_compiler
@pytest.mark.parametrize("damage", ["true > $OUT", "echo damaged > $OUT"])
def test_a_cached_file_that_cannot_be_loaded_is_built_again(
    fresh_cache: Path, compiles: str, compiler: Compiler, damage: str
) -> None:
    compiler("c++", damage)
    assert build.loaded(FASTEST) is None
    assert len(list(fresh_cache.glob("mmserve/*.so"))) == 1
    build.loaded.cache_clear()
    compiler("c++", compiles)
    assert build.loaded(FASTEST) is not None


@needs_compiler
def test_a_compiler_that_fails_is_passed_over(fresh_cache: Path, compiles: str, compiler: Compiler) -> None:
    compiler("c++", "exit 1")
    compiler("g++", compiles)
    assert build.loaded(FASTEST) is not None


def test_all_errors_are_reported_when_no_compiler_works(
    fresh_cache: Path, compiler: Compiler, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("c++", "g++"):
        compiler(name, f"echo no luck with {name} >&2; exit 1")
    assert not build.build_or_warn()
    assert all(f"no luck with {name}" in caplog.text for name in ("c++", "g++"))


@needs_compiler
def test_a_compiler_that_is_too_old_for_the_fastest_level_builds_the_next(
    fresh_cache: Path,
    compiles: str,
    compiler: Compiler,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    amx, next_one = levels.LEVELS["x86_64"][:2]
    monkeypatch.setattr(levels, "of_this_cpu", lambda fastest="auto": [amx, next_one])
    compiler("c++", f'case "$*" in *-mamx*) echo unknown option >&2; exit 1;; esac; {compiles}')
    assert build.build_or_warn()
    assert [path.name.split("-")[1] for path in fresh_cache.glob("mmserve/*.so")] == [next_one.name]
    assert "for amx cannot be built, so those for avx512_bf16 compute" in caplog.text
    assert "unknown option" in caplog.text


@needs_compiler
def test_a_home_that_cannot_be_written_falls_back_to_the_temporary_directory(
    fresh_cache: Path,
    compiles: str,
    compiler: Compiler,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    temporary = tmp_path_factory.mktemp("tmp")
    (fresh_cache / "mmserve").write_text("no directory")
    monkeypatch.setenv("TMPDIR", str(temporary))
    compiler("c++", compiles)
    assert build.loaded(FASTEST) is not None
    assert list(temporary.glob("mmserve-*/*.so"))


def test_a_cached_file_is_found_while_no_temporary_directory_can_be_written(
    fresh_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at a restart while disks are full: without the kernels a resumed answer could go on with other words."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/dev/null"])
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    assert user_cache.directory() == fresh_cache / "mmserve"
