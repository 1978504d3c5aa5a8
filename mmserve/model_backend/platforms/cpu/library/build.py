"""Finds, builds and loads the shared object of the C++ kernels for this CPU's instruction set.

A wheel has the kernels of every level (``hatch_build.py`` in the repository). An editable installation, or a CPU whose
level the wheel lacks, compiles them once into the user's cache directory. Without either there are no kernels, and
torch computes everything. As a program (``python -m mmserve.model_backend.platforms.cpu.library.build``) this only
builds, and says if it cannot: one warning a server, however many processes load the kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import subprocess
import sys
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

from mmserve.model_backend.platforms.cpu.library import compiler, levels
from mmserve.model_backend.platforms.cpu.library.levels import Level
from mmserve.runtime import user_cache
from mmserve.runtime.logs import log

_SHIPPED = Path(__file__).with_name("shipped")
"""In a wheel: the kernels of every level, with the names that ``compiler.file_name`` gives to these sources."""
_POINTER, _SIZE = c_void_p, c_int64
_SIGNATURES = {
    "mm_set_threads": (c_int,),
    "mm_leave": (_POINTER, *(_SIZE,) * 3),
    "mm_choose_ways": (_POINTER, _SIZE),
    "mm_linear": (_POINTER, _POINTER, c_int, *(_POINTER,) * 2, *(_SIZE,) * 3, c_int),
    "mm_rows": (_POINTER, c_int, *(_POINTER,) * 2, *(_SIZE,) * 2),
    "mm_rms_norm": (_POINTER, _POINTER, c_float, _POINTER, _SIZE, _SIZE),
    "mm_head_norm": (_POINTER, _SIZE, _POINTER, c_float, *(_SIZE,) * 3),
    "mm_layer_norm": (*(_POINTER,) * 3, c_float, _POINTER, *(_SIZE,) * 2),
    "mm_add_scaled": (*(_POINTER,) * 3, *(_SIZE,) * 2),
    "mm_rotate": (_POINTER, _SIZE, _POINTER, _POINTER, *(_SIZE,) * 5),
    "mm_activation": (_POINTER, *(_SIZE,) * 3),
    "mm_act_and_mul": (_POINTER, _POINTER, *(_SIZE,) * 3),
    "mm_attention": (*(_POINTER,) * 4, c_int, *(_POINTER,) * 3, *(_SIZE,) * 8, _POINTER, c_float),
    "mm_encoder_attention": (*(_POINTER,) * 3, *(_SIZE,) * 3, c_int),
    "mm_sample": (_POINTER, *(_SIZE,) * 3, _POINTER, c_int, _POINTER),
    "mm_ban": (_POINTER, *(_SIZE,) * 2, _POINTER, _SIZE, _POINTER, _SIZE),
    "mm_finite": (_POINTER, *(_SIZE,) * 3, _POINTER),
    "mm_decoder": (_POINTER, _POINTER, _POINTER),
    "mm_decode": (_POINTER,) * 5,
    "mm_feed_forward": (_POINTER, _POINTER, _SIZE),
    "mm_self_attention": (*(_POINTER,) * 3, _SIZE),
}
_ASKED = ("mm_has_tiles",)
"""Functions without arguments that return an int."""
logger = logging.getLogger("mmserve.kernels")  # __name__ would be __main__ when this is the program


@cache
def loaded(level: Level) -> ctypes.CDLL | None:
    """The kernels of a level that this CPU has, built first if need be; None if they cannot be built or loaded."""
    try:
        return build_and_load(level)
    except (OSError, subprocess.SubprocessError) as error:
        logger.debug("no C++ kernels for %s: %s", level.name, error)
        return None


def is_shipped(level: Level) -> bool:
    """True if this installation came with the kernels of this level."""
    return (_SHIPPED / compiler.file_name(level)).exists()


def build_and_load(level: Level) -> ctypes.CDLL:
    """The kernels of these sources for this level, which this CPU must have. Raises OSError or SubprocessError.

    A file that cannot be loaded is built again: a cached one may be empty after a power cut, and one of a wheel may
    need another libstdc++.
    """
    name = compiler.file_name(level)
    shipped = _SHIPPED / name
    if shipped.exists() and (kernels := _load_if_possible(shipped)):
        return kernels
    path = user_cache.directory() / name
    with contextlib.suppress(OSError):
        return _load(path)  # without the lock, which a process that is suspended may hold
    with user_cache.locked(path.with_suffix(".lock")):  # ranks and visual servers start at the same time
        if path.exists() and (kernels := _load_if_possible(path)):
            return kernels
        logger.info("building the C++ kernels for %s, once, in %s", level.name, path.parent)
        compiler.compile_kernels(level, path)
        return _load(path)


def _load_if_possible(path: Path) -> ctypes.CDLL | None:
    try:
        return _load(path)
    except OSError as error:
        logger.warning("building the C++ kernels again, because %s cannot be loaded: %s", path, error)
        return None


def _load(path: Path) -> ctypes.CDLL:
    """Raises OSError if it is not a shared object with all functions."""
    kernels = ctypes.CDLL(str(path))
    try:
        for name, arguments in _SIGNATURES.items():
            function = getattr(kernels, name)
            function.argtypes, function.restype = arguments, None
        for name in _ASKED:
            getattr(kernels, name).argtypes = ()
    except AttributeError as error:
        raise OSError(str(error)) from None
    return kernels


def build_or_warn(fastest: str = "auto") -> bool:
    """False if there are no kernels. Of all processes of a server, one calls this and warns. ``fastest``: the level.

    A compiler may be too old for the fastest level; then the next one is taken.
    """
    first, *others = levels.of_this_cpu(fastest)
    try:
        build_and_load(first)
    except (OSError, subprocess.SubprocessError) as error:
        reason = " ".join(str(error).split())
    else:
        return True
    if compiler.compilers() and (found := next((level.name for level in others if loaded(level)), None)):
        logger.warning("the C++ kernels for %s cannot be built, so those for %s compute: %s", first.name, found, reason)
        return True
    logger.warning(
        "no C++ kernels, so torch computes alone, several times slower: %s. Install g++ (Debian and Ubuntu: "
        "apt install g++) and start again, or install a wheel of mmserve for this CPU, which has the kernels",
        reason,
    )
    return False


def main(log_level: str = "info", fastest: str = "auto") -> int:
    """Returns 1 if there are no kernels, or not this level, which the ranks report."""
    log.setup("kernels", log_level)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the compiler and removes its files
    try:
        return 0 if build_or_warn(fastest) else 1
    except ValueError:
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
