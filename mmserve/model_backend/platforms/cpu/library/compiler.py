"""Compiles the C++ kernels of one level. Imports the standard library only, because the wheel's build uses it too."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from mmserve.model_backend.platforms.cpu.library import levels
from mmserve.model_backend.platforms.cpu.library.levels import Level

SOURCES = Path(__file__).parents[1] / "csrc"
OPTIONS = ("-std=c++20", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
_COMPILERS = ("c++", "g++", "clang++")
_COMPILE_WITHIN_S = 300


def compilers() -> list[str]:
    """Paths of the C++ compilers found, without other names of the same program."""
    found = {os.path.realpath(path): path for path in map(shutil.which, reversed(_COMPILERS)) if path}
    return [*reversed(found.values())]


def file_name(level: Level) -> str:
    """Of the shared object. Differs for other sources, options or levels."""
    sources = b"".join(path.read_bytes() for path in sorted(SOURCES.rglob("*")) if path.is_file())
    key = hashlib.sha256(b"\0".join((sources, " ".join(OPTIONS).encode(), levels.key(level)))).hexdigest()
    return f"kernels-{level.name}-{key[:16]}.so"


def compile_kernels(level: Level, path: Path) -> None:
    """Write the shared object with the first compiler that can: the kernels use extensions that not every one has.

    Raises OSError or subprocess.SubprocessError.
    """
    if not (programs := compilers()):
        raise FileNotFoundError("no C++ compiler is installed")
    errors = []
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        built = Path(directory) / path.name
        for program in programs:
            options = (*OPTIONS, *level.options, f"-I{SOURCES}")
            command = [program, *options, str(SOURCES / "kernels.cpp"), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_WITHIN_S, check=False)
            if not done.returncode:
                _write_back(built)
                built.replace(path)
                return
            errors.append(f"{program} fails: {done.stderr[-300:]}")
    raise OSError("; ".join(errors))


def _write_back(path: Path) -> None:
    """Before a file is renamed: after a power cut a new name must not stand for an empty file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
