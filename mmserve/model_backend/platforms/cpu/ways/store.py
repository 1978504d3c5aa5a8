"""Choices in the user's cache directory: one file for each CPU model, build of the kernels and number of threads."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from mmserve.model_backend.platforms.cpu.library import levels
from mmserve.model_backend.platforms.cpu.ways.candidates import MAX_ROWS, Choices, Product, Way
from mmserve.runtime import user_cache

_PREFIX = "ways-"


class Measured(NamedTuple):
    """The result for one product and number of rows. ``gain``: the share of the default's time that was saved."""

    product: Product
    rows: int
    way: Way
    gain: float


class Kept(msgspec.Struct):
    """All results of one CPU, build and number of threads."""

    cpu: str
    kernels: str
    """File name of the shared object, which names the level and the sources."""
    threads: int
    measured: list[Measured] = []

    def choices(self) -> Choices:
        return {(found.product, found.rows): found.way for found in self.measured}


class Store:
    """The file of these kernels on this CPU. Raises OSError without a cache directory."""

    def __init__(self, kernels: Path, threads: int) -> None:
        self._is_about = (levels.cpu_model(), kernels.name, threads)
        key = hashlib.sha256(repr(self._is_about).encode()).hexdigest()[:16]
        self._path = user_cache.directory() / f"{_PREFIX}{key}.json"

    def read(self) -> Kept:
        """Empty if there is no file, or none that can be read."""
        return _read(self._path) or Kept(*self._is_about)

    def write(self, kept: Kept) -> None:
        partial = self._path.with_suffix(".new")
        partial.write_text(json.dumps(msgspec.to_builtins(kept), indent=1))
        partial.replace(self._path)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        """Within the block no other process of this user measures, whatever it measures. Waits for it."""
        with user_cache.locked(self._path.with_name(f"{_PREFIX}measuring.lock")):
            yield


def kept() -> list[Kept]:
    """All results in the user's cache directory."""
    try:
        files = sorted(user_cache.directory().glob(f"{_PREFIX}*.json"))
    except OSError:
        return []
    return [found for path in files if (found := _read(path)) is not None]


def _read(path: Path) -> Kept | None:
    """None for a file that has other fields, or ways that the kernels do not have."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return None
    return found if all(_is_sound(measured) for measured in found.measured) else None


def _is_sound(measured: Measured) -> bool:
    way = measured.way
    outputs = way.task_outputs
    return measured.rows in MAX_ROWS and min(way) >= 0 and outputs > 0 and outputs % 32 == 0
