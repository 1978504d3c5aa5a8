"""What ``hatch_build.py`` puts into a wheel: the kernels of every level, and the platforms that the wheel names."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from mmserve.model_backend.platforms.cpu.library import compiler, levels

_POLICY = "manylinux_2_28"
"""The one of torch's wheels."""
_LATEST = {b"GLIBC": (2, 28), b"GLIBCXX": (3, 4, 24), b"CXXABI": (1, 3, 11), b"GCC": (7, 0, 0)}
"""The latest versions of symbols that it allows."""
_VERSION = re.compile(rb"\0(GLIBC|GLIBCXX|CXXABI|GCC)_([\d.]+)(?=\0)")


def compile_all(directory: Path) -> list[Path]:
    """The kernels of this machine's levels, under the names that ``build`` looks for; empty if it has no levels.

    Raises OSError or subprocess.SubprocessError.
    """
    paths = {directory / compiler.file_name(level): level for level in levels.of_this_machine()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        builds = [pool.submit(partial(compiler.compile_kernels, level, path)) for path, level in paths.items()]
    for build in builds:
        build.result()
    return [*paths]


def platform_tag(libraries: Sequence[Path]) -> str:
    """manylinux if these need no later C and C++ libraries than it allows, else this machine's kind alone.

    The later the system a wheel is made on, the later the libraries it needs.
    """
    needed = {found for path in libraries for found in _VERSION.findall(path.read_bytes())}
    is_old_enough = all(tuple(map(int, version.split(b"."))) <= _LATEST[name] for name, version in needed)
    return f"{_POLICY if is_old_enough else 'linux'}_{platform.machine()}"
