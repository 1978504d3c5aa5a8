"""The kernels compute the same bits on AArch64, which QEMU emulates, as on this machine. Two compilations, a minute."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import compiler, levels

CROSS, QEMU = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
DRIVER = Path(__file__).with_name("driver.cpp")

pytestmark = [
    pytest.mark.skipif(not (CROSS and QEMU), reason="no cross compiler or no QEMU (g++-aarch64-linux-gnu, qemu-user)"),
    pytest.mark.skipif(not levels.of_this_machine(), reason="nothing known to compare with"),
    pytest.mark.timeout(900),
]


def compiling(program: str, options: Sequence[str], path: Path) -> subprocess.Popen[bytes]:
    shared = {"-shared", "-fPIC"}
    common = [option for option in compiler.OPTIONS if option not in shared]
    return subprocess.Popen(
        [program, *common, *options, "-static", f"-I{compiler.SOURCES}", str(DRIVER), "-o", str(path)]
    )


def lines(*command: str) -> list[list[str]]:
    """Names and the bits of numbers, as the driver writes them."""
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split(":") for line in text.splitlines()]


def test_results_have_the_bits_of_this_machine(tmp_path: Path) -> None:
    assert CROSS is not None
    assert QEMU is not None
    here, there = tmp_path / "here", tmp_path / "there"
    compilers = [
        compiling(compiler.compilers()[0], levels.of_this_cpu()[0].options, here),
        compiling(CROSS, levels.LEVELS["aarch64"][0].options, there),
    ]
    assert [process.wait() for process in compilers] == [0, 0]
    expected, found = lines(str(here)), lines(QEMU, str(there))
    assert len(expected) == len(found) > 90
    assert [name for (name, bits), other in zip(expected, found, strict=True) if other != [name, bits]] == []
