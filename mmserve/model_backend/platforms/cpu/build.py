"""Builds the C++ kernels in ``csrc`` once for this CPU's instruction set, caches the shared object and loads it.

It needs a C++ compiler; without one there are no kernels and torch computes everything. The shared object is kept in
the user's cache directory. As a program (``python -m mmserve.model_backend.platforms.cpu.build``) it only builds.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from mmserve.model_backend.platforms.cpu import levels
from mmserve.model_backend.platforms.cpu.levels import Level
from mmserve.runtime.logs import log

_SOURCES = Path(__file__).parent / "csrc"
_OPTIONS = ("-std=c++20", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
_COMPILERS = ("c++", "g++", "clang++")
_BUILD_WITHIN_S = 120
_POINTER, _SIZE = c_void_p, c_int64
_SIGNATURES = {
    "mm_set_threads": (c_int,),
    "mm_leave": (_POINTER, *(_SIZE,) * 3),
    "mm_linear": (_POINTER, _POINTER, c_int, *(_POINTER,) * 2, *(_SIZE,) * 3, c_int),
    "mm_rows": (_POINTER, c_int, *(_POINTER,) * 2, *(_SIZE,) * 2),
    "mm_rms_norm": (_POINTER, _POINTER, c_float, _POINTER, _SIZE, _SIZE),
    "mm_head_norm": (_POINTER, _SIZE, _POINTER, c_float, *(_SIZE,) * 3),
    "mm_layer_norm": (*(_POINTER,) * 3, c_float, _POINTER, *(_SIZE,) * 2),
    "mm_rotate": (_POINTER, _SIZE, _POINTER, _POINTER, *(_SIZE,) * 5),
    "mm_activation": (_POINTER, *(_SIZE,) * 3),
    "mm_act_and_mul": (_POINTER, _POINTER, *(_SIZE,) * 3),
    "mm_attention": (*(_POINTER,) * 4, c_int, *(_POINTER,) * 3, *(_SIZE,) * 8, _POINTER, c_float),
    "mm_encoder_attention": (*(_POINTER,) * 3, *(_SIZE,) * 3, c_int),
    "mm_sample": (_POINTER, *(_SIZE,) * 3, _POINTER, c_int, _POINTER),
    "mm_ban": (_POINTER, *(_SIZE,) * 2, _POINTER, _SIZE, _POINTER, _SIZE),
    "mm_finite": (_POINTER, *(_SIZE,) * 3, _POINTER),
    "mm_decoder": (_POINTER, _POINTER, _POINTER),
}
logger = logging.getLogger("mmserve.kernels")  # __name__ would be __main__ when this is the program


@cache
def loaded() -> ctypes.CDLL | None:
    """The kernels, built first if the cache lacks them; None if they cannot be built or loaded."""
    try:
        return build_and_load(levels.of_this_cpu()[0])
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("no C++ kernels, torch computes alone (slower): %s", " ".join(str(error).split()))
        return None


def build_and_load(level: Level) -> ctypes.CDLL:
    """The kernels of these sources for this level, which this CPU must have. Raises OSError or SubprocessError.

    A cached file that cannot be loaded is built again: it may be empty after a power cut, or need another libstdc++.
    """
    sources = b"".join(path.read_bytes() for path in sorted(_SOURCES.rglob("*")) if path.is_file())
    name = hashlib.sha256(b"\0".join((sources, " ".join(_OPTIONS).encode(), levels.key(level)))).hexdigest()[:16]
    path = _cache_directory() / f"kernels-{level.name}-{name}.so"
    with _locked(path.with_suffix(".lock")):  # ranks and visual servers start at the same time
        if path.exists():
            try:
                return _load(path)
            except OSError as error:
                logger.warning("building the C++ kernels again, because %s cannot be loaded: %s", path, error)
        _build(level, path)
        return _load(path)


def _load(path: Path) -> ctypes.CDLL:
    """Raises OSError if it is not a shared object with all functions."""
    kernels = ctypes.CDLL(str(path))
    for name, arguments in _SIGNATURES.items():
        try:
            function = getattr(kernels, name)
        except AttributeError as error:
            raise OSError(str(error)) from None
        function.argtypes, function.restype = arguments, None
    return kernels


def compilers() -> list[str]:
    """Paths of the C++ compilers found, without other names of the same program."""
    found = {os.path.realpath(path): path for path in map(shutil.which, reversed(_COMPILERS)) if path}
    return [*reversed(found.values())]


def _build(level: Level, path: Path) -> None:
    """With the first compiler that can: the kernels use extensions that not every one has."""
    if not (programs := compilers()):
        raise FileNotFoundError("no C++ compiler is installed")
    logger.info("building the C++ kernels for %s, once, in %s", level.name, path.parent)
    errors = []
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        built = Path(directory) / path.name
        for program in programs:
            options = (*_OPTIONS, *level.options, f"-I{_SOURCES}")
            command = [program, *options, str(_SOURCES / "kernels.cpp"), "-o", str(built)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_WITHIN_S, check=False)
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


def _cache_directory() -> Path:
    """The first writable candidate. It must belong to this user, because its files are executed. Raises OSError.

    Not of ``tempfile.gettempdir``, which writes a file to try a directory: it fails while disks are full.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    for directory in (Path(home) / "mmserve", Path(os.environ.get("TMPDIR") or "/tmp") / f"mmserve-{os.getuid()}"):
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = directory.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(directory, os.W_OK):
                return directory
    raise PermissionError("there is no directory of our own to build them in")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(log_level: str = "info") -> int:
    """Returns 1 if the build fails. The process that loads the kernels logs the reason."""
    log.setup("kernels", log_level)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the compiler and removes its files
    try:
        build_and_load(levels.of_this_cpu()[0])
    except (OSError, subprocess.SubprocessError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
