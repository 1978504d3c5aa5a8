"""The tile instructions of AMX compute what the kernels compute without them.

On CPUs without AMX a signal's handler does what Intel's manual says (``traps.h``), instruction by instruction, so this
shows that the machine code passes the right addresses, strides and registers. It needs AVX2 and FMA alone.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import compiler, levels, tile_permission

HERE = Path(__file__).parent
AVX2 = levels.LEVELS["x86_64"][-1]
OPTIONS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")

pytestmark = [
    pytest.mark.skipif(
        platform.machine() != "x86_64" or AVX2 not in levels.of_this_cpu(), reason="these are instructions of x86-64"
    ),
    pytest.mark.skipif(not compiler.compilers(), reason="no C++ compiler on this machine"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiles") / "driver"
    common = [option for option in compiler.OPTIONS if option not in {"-shared", "-fPIC"}]
    options = [*common, *AVX2.options, *OPTIONS, f"-I{compiler.SOURCES}"]
    subprocess.run([compiler.compilers()[0], *options, str(HERE / "driver.cpp"), "-o", str(path)], check=True)
    return path


def test_with_and_without_tile_instructions_products_have_the_same_bits(driver: Path) -> None:
    found = subprocess.run([driver, "traps"], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(found) == 1, found
    cases, handled = (int(word) for word in found[0].split() if word.isdigit())
    assert cases == 97
    assert handled > 100 * cases, "this process may use tile registers, so no instruction was trapped"


@pytest.mark.skipif(not tile_permission.permitted(), reason="a CPU or a system without AMX")
def test_this_cpu_has_these_bits_too(driver: Path) -> None:
    found = subprocess.run([driver, "iron"], capture_output=True, text=True, check=True).stdout
    assert found == "97 cases, 0 instructions in the handler\n"
