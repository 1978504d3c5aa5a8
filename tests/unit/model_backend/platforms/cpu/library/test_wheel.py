"""The kernels that a wheel has are those that an installation of it looks for, and its tag names the right machines."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import build, compiler, levels, wheel
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler

_LIBC = tuple(map(int, (platform.libc_ver()[1] or "0").split(".")))


@pytest.mark.skipif(not levels.of_this_machine(), reason="no levels for this architecture, so nothing to ship")
def test_all_levels_are_compiled_under_the_names_that_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "c++"
    program.write_text("#!/bin/sh\nfor OUT; do :; done\necho compiled > $OUT\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", {"c++": str(program)}.get)
    found = wheel.compile_all(tmp_path)
    assert {path.name for path in found} == {compiler.file_name(level) for level in levels.of_this_machine()}
    assert len(found) == len(levels.of_this_machine())
    assert all(path.read_text() == "compiled\n" for path in found)


def test_without_a_compiler_there_is_nothing_to_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with pytest.raises(FileNotFoundError, match="compiler"):
        wheel.compile_all(tmp_path)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert wheel.compile_all(tmp_path) == []


@pytest.mark.parametrize(
    ("symbols", "tag"),
    [
        ("GLIBC_2.2.5 GLIBC_2.28 GLIBCXX_3.4 CXXABI_1.3.11 GCC_3.0", "manylinux_2_28_x86_64"),
        ("GLIBC_2.2.5 GLIBC_2.29", "linux_x86_64"),
        ("GLIBC_2.2.5 GLIBCXX_3.4.29", "linux_x86_64"),
        ("GLIBC_2.2.5 CXXABI_1.3.13", "linux_x86_64"),
    ],
)
def test_the_tag_depends_on_the_c_library_that_is_needed(
    symbols: str, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    names = [b"\0%s\0" % b"\0".join(part.encode().split()) for part in ("", symbols)]
    for number, strings in enumerate(names):
        (tmp_path / str(number)).write_bytes(b"\x7fELF" + strings)
    assert wheel.platform_tag([tmp_path / "0", tmp_path / "1"]) == tag


@needs_compiler
def test_the_versions_in_a_real_shared_object_are_found() -> None:
    assert any(name == b"GLIBC" for name, _ in wheel._VERSION.findall(Path(kernels()._name).read_bytes()))


@needs_compiler
@pytest.mark.skipif(_LIBC > (2, 36), reason="what is made on a system later than Debian 12 may need a later C library")
def test_the_kernels_run_wherever_torch_does() -> None:
    assert wheel.platform_tag([Path(kernels()._name)]) == f"manylinux_2_28_{platform.machine()}"


@needs_compiler
def test_the_kernels_of_a_wheel_need_no_compiler_and_no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    level = levels.of_this_cpu()[0]
    shutil.copy(kernels()._name, tmp_path / compiler.file_name(level))
    monkeypatch.setattr(build, "_SHIPPED", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(build.user_cache, "directory", lambda: pytest.fail("looked into the cache"))
    assert Path(build.build_and_load(level)._name).parent == tmp_path


@needs_compiler
@pytest.mark.parametrize("is_damaged", [True, False], ids=["damaged", "of other sources"])
def test_kernels_of_a_wheel_that_cannot_be_used_are_built_anew(
    is_damaged: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    level, working = levels.of_this_cpu()[0], kernels()._name
    shipped, cache, program = tmp_path / "shipped", tmp_path / "cache", tmp_path / "c++"
    shipped.mkdir()
    (shipped / (compiler.file_name(level) if is_damaged else "kernels-other.so")).write_text("damaged")
    program.write_text(f"#!/bin/sh\nfor OUT; do :; done\ncp '{working}' $OUT\n")
    program.chmod(0o755)
    monkeypatch.setattr(shutil, "which", {"c++": str(program)}.get)
    monkeypatch.setattr(build, "_SHIPPED", shipped)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert Path(build.build_and_load(level)._name).parent == cache / "mmserve"
