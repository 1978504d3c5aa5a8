"""The kernels for AArch64, which QEMU emulates, compute the same bits as those of this machine.

They are compiled as they would be on such a machine, as shared objects.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import arm_features, build, compiler, levels

CROSS, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
DRIVER = Path(__file__).with_name("driver.cpp")
OPTIONS = ("-std=c++20", "-O1", "-pthread", "-Wno-psabi", "-fvisibility=hidden", f"-I{compiler.SOURCES}")
"""Of the driver. What is hidden in it cannot take the place of the kernels' own functions."""
LEVELS = {level.name: level for level in levels.LEVELS["aarch64"]}
CPUS = {"neon": "cortex-a72", "neon_bf16": "max"}
"""One that has the level and no faster one."""

pytestmark = [
    pytest.mark.arm,
    pytest.mark.skipif(not (CROSS and QEMU), reason="no cross compiler or no QEMU (g++-aarch64-linux-gnu, qemu-user)"),
    pytest.mark.skipif(not levels.of_this_machine(), reason="nothing known to compare with"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The driver with the kernels of each level."""
    assert CROSS is not None
    directory, program = tmp_path_factory.mktemp("aarch64"), CROSS
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as pool:
        patch.setattr(compiler, "compilers", lambda: [program])

        def make(name: str) -> Path:
            library = directory / f"{name}.so"
            compiler.compile_kernels(LEVELS[name], library)
            return linked(program, library, directory / name)

        return dict(zip(LEVELS, pool.map(make, LEVELS), strict=True))


def linked(program: str, library: Path, path: Path) -> Path:
    subprocess.run([program, *OPTIONS, str(DRIVER), str(library), "-o", str(path)], check=True)
    return path


def emulated(program: Path, cpu: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CROSS is not None
    assert QEMU is not None
    libc = subprocess.run([CROSS, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
    command = [QEMU, "-cpu", cpu, "-L", str(Path(libc.strip()).resolve().parents[1]), str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def lines(text: str) -> list[list[str]]:
    """Names and the bits of numbers, as the driver writes them."""
    return [line.split(":") for line in text.splitlines()]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What the kernels of this machine compute."""
    kernels = Path(build.build_and_load(levels.of_this_cpu()[0])._name)
    program = linked(compiler.compilers()[0], kernels, tmp_path_factory.mktemp("here") / "here")
    return lines(subprocess.run([program], capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("level", LEVELS)
def test_results_have_the_bits_of_this_machine(
    level: str, programs: Mapping[str, Path], expected: list[list[str]]
) -> None:
    done = emulated(programs[level], CPUS[level])
    assert done.returncode == 0
    found = lines(done.stdout)
    assert len(expected) == len(found) > 100
    assert [name for (name, bits), other in zip(expected, found, strict=True) if other != [name, bits]] == []


def test_the_faster_level_has_instructions_that_the_other_cpu_lacks(programs: Mapping[str, Path]) -> None:
    assert emulated(programs["neon_bf16"], CPUS["neon"]).returncode == -signal.SIGILL


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_found_by_what_linux_says_of_the_cpu(
    level: str, programs: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    hwcap, hwcap2 = map(int, emulated(programs[level], CPUS[level], "features").stdout.split())
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(arm_features, "_getauxval", lambda: {16: hwcap, 26: hwcap2}.__getitem__)
    assert levels.of_this_cpu()[0] == LEVELS[level]
