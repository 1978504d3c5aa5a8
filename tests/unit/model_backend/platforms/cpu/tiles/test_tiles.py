"""The tile instructions of AMX compute what the kernels compute without them.

On CPUs without AMX a signal's handler does what Intel's manual says (``traps.h``), instruction by instruction, so this
shows that the machine code passes the right addresses, strides and registers. Bytes are beside AVX512-VNNI, the rest
needs AVX2 and FMA alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import compiler, levels, tile_permission
from mmserve.model_backend.platforms.cpu.library.levels import Level

HERE = Path(__file__).parent
_, BYTES, _, BFLOAT16 = levels.LEVELS["x86_64"]
"""The levels whose instructions the programs need besides."""
PROGRAMS = {"bfloat16": (BFLOAT16, 97), "bytes": (BYTES, 12)}
"""With their numbers of cases."""
OPTIONS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")

pytestmark = pytest.mark.skipif(not compiler.compilers(), reason="no C++ compiler on this machine")


def built(name: str, level: Level, directory: Path) -> Path:
    if level not in levels.of_this_cpu():
        pytest.skip(f"this CPU has no {level.name}")
    path = directory / name
    common = [option for option in compiler.OPTIONS if option not in {"-shared", "-fPIC"}]
    options = [*common, *level.options, *OPTIONS, f"-I{compiler.SOURCES}"]
    subprocess.run([compiler.compilers()[0], *options, str(HERE / f"{name}.cpp"), "-o", str(path)], check=True)
    return path


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_and_without_tile_instructions_products_have_the_same_bits(name: str, tmp_path: Path) -> None:
    """Also with those of this CPU, if it has them."""
    level, cases = PROGRAMS[name]
    program = built(name, level, tmp_path)
    found = subprocess.run([program, "traps"], capture_output=True, text=True, check=True).stdout
    handled = int(found.split()[2])
    assert handled > 100 * cases, "this process may use tile registers, so no instruction was trapped"
    assert found == f"{cases} cases, {handled} instructions in the handler\n"
    if tile_permission.permitted():
        on_this_cpu = subprocess.run([program, "iron"], capture_output=True, text=True, check=True).stdout
        assert on_this_cpu == f"{cases} cases, 0 instructions in the handler\n"
