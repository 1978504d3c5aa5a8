"""The instruction sets that the C++ kernels are compiled for, and which of them this CPU has.

All levels compute the same numbers from weights in the same layout. Products of bfloat16 in tile registers have
numbers of their own, the same on all levels too; only AMX is fast at them, and only it is asked for them. A build is
loaded as a whole, so code of a level never runs on a CPU without it.
"""

from __future__ import annotations

import contextlib
import platform
import re
from pathlib import Path
from typing import NamedTuple

from mmserve.model_backend.platforms.cpu.library import arm_features, tile_permission

_AVX2 = frozenset({"avx", "avx2", "fma", "bmi1", "bmi2", "f16c", "movbe", "abm"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
"""By the names of ``/proc/cpuinfo``. These two are x86-64-v3 and x86-64-v4."""
_AVX512_BF16 = _AVX512 | {"avx512_bf16", "avx512_vnni"}
_AVX512_BF16_OPTIONS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")
_TILES = "amx_tile"
_AMX = _AVX512_BF16 | {_TILES, "amx_bf16", "amx_int8"}


class Level(NamedTuple):
    """A build of the kernels."""

    name: str
    options: tuple[str, ...]
    """Of the compiler."""
    needs: frozenset[str] = frozenset()
    """Flags, by the names of ``/proc/cpuinfo``."""
    tied_to_this_cpu: bool = False
    """Compiled for all flags that this CPU happens to have."""


_X86_64 = (
    Level("amx", (*_AVX512_BF16_OPTIONS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), _AMX),
    Level("avx512_bf16", _AVX512_BF16_OPTIONS, _AVX512_BF16),
    Level("avx512", ("-march=x86-64-v4",), _AVX512),
    Level("avx2", ("-march=x86-64-v3",), _AVX2),
)
_NEON = frozenset({"fp", "asimd"})
_NEON_BF16 = _NEON | {"crc32", "atomics", "asimdrdm", "bf16", "i8mm"}
"""The second is Armv8.2 and two extensions."""
_IN_ORDER = "-fno-schedule-insns"
"""GCC would load early what it multiplies late, and keep sums in memory for want of registers."""
_AARCH64 = (
    Level("neon_bf16", ("-march=armv8.2-a+bf16+i8mm", _IN_ORDER), _NEON_BF16),
    Level("neon", ("-march=armv8-a", _IN_ORDER), _NEON),
)
LEVELS = {"x86_64": _X86_64, "aarch64": _AARCH64}
"""Of each machine, the fastest first."""
NATIVE = Level("native", ("-march=native",), tied_to_this_cpu=True)
"""Any other CPU: plain code, as good as its compiler makes it."""


def of_this_cpu(fastest: str = "auto") -> list[Level]:
    """The levels that this CPU has, the fastest first; at least one. No faster ones than the one named ``fastest``.

    Raises ValueError, with the names of the levels that there are, if it is none of them.
    """
    flags = set(_flags().split())
    if refuses_tiles():
        flags.remove(_TILES)
    found = [level for level in of_this_machine() if level.needs <= flags] or [NATIVE]
    names = [level.name for level in found]
    if fastest not in ("auto", *names):
        raise ValueError(", ".join(names))
    return found if fastest == "auto" else found[names.index(fastest) :]


def refuses_tiles() -> bool:
    """True if this CPU has tile registers, and the system does not let this process use them."""
    return _TILES in _flags().split() and not tile_permission.permitted()


def of_this_machine() -> tuple[Level, ...]:
    """The levels that CPUs of this architecture may have, the fastest first; empty for one without any."""
    return LEVELS.get(platform.machine(), ())


def key(level: Level) -> bytes:
    """Differs for builds of one source that must not be exchanged: different machines may share a cache."""
    return " ".join((platform.machine(), *level.options, _flags() if level.tied_to_this_cpu else "")).encode()


def cpu_model() -> str:
    """What tells CPUs of different speed apart: vendor, name, family, model and stepping."""
    names = ("vendor_id", "model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU variant")
    return ", ".join(found for name in names if (found := _field(name).strip())) or platform.processor()


def _flags() -> str:
    if platform.machine() == "aarch64" and platform.system() == "Linux":
        return " ".join(arm_features.found())
    return _field("flags|Features") or platform.processor()


def _field(name: str) -> str:
    """Of the first CPU in ``/proc/cpuinfo``; empty without it."""
    with contextlib.suppress(OSError):
        found = re.search(rf"^(?:{name})[ \t]*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if found:
            return found[1]
    return ""
