"""Streams a checkpoint's safetensors files into the parts of parameters that this process holds.

A model says where each tensor goes (``Target``). Only that part is read from the file, so host memory holds at most one
part besides the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mmserve.checkpoint.files import weight_files
from mmserve.model_backend.layers.target import Target, Targets
from mmserve.runtime.errors import StartupError

Progress = Callable[[int, int, str], None]
"""(done, total, unit)"""
CanonicalName = Callable[[str], str | None]
"""Stored tensor name -> the name used here, None for a tensor to skip."""
_ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}
_NAMES_SHOWN = 3


def load(
    directory: str | Path,
    namespaces: tuple[str, ...],
    canonical_name: CanonicalName,
    targets: Targets,
    progress: Progress,
    loaded: Callable[[str], object] = lambda name: None,
) -> None:
    """Fill every target from the checkpoint. ``namespaces``: prefixes of the canonical names that this process loads.

    Tensors are read in the order of ``targets``, so those of one layer follow each other. After each one,
    ``loaded(canonical name)`` is called.
    ``progress(done, total, "bytes")`` counts the bytes this process reads. Raises StartupError that names the tensor if
    one is missing, unexpected or of another shape or dtype.
    """
    order = {name: index for index, name in enumerate(targets)}
    parts = sorted(
        _parts(Path(directory), namespaces, canonical_name, targets), key=lambda part: order[part.canonical_name]
    )
    total_nbytes = sum(part.nbytes for part in parts)
    done_nbytes = 0
    progress(0, total_nbytes, "bytes")
    for part in parts:
        part.copy()
        loaded(part.canonical_name)
        done_nbytes += part.nbytes
        progress(done_nbytes, total_nbytes, "bytes")


@dataclass(frozen=True)
class _Part:
    """One tensor of an open file and its target."""

    canonical_name: str
    slice: Any
    target: Target
    nbytes: int

    def copy(self) -> None:
        into, dim, start = self.target.into, self.target.dim, self.target.start
        window = tuple(
            slice(start, start + into.shape[axis]) if axis == dim else slice(None) for axis in range(into.dim())
        )
        into.copy_(self.slice[window].reshape(into.shape))


def _parts(
    directory: Path, namespaces: tuple[str, ...], canonical_name: CanonicalName, targets: Targets
) -> Iterator[_Part]:
    missing = {name for name, target in targets.items() if target is not None}
    for path in weight_files(directory):
        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise StartupError(f"{path} is not a readable safetensors file ({error}); fetch it again") from error
        for stored_name in file.keys():  # noqa: SIM118 (no mapping)
            name = canonical_name(stored_name)
            if name is None or not name.startswith(namespaces):
                continue
            if name not in targets:
                raise StartupError(f"unexpected tensor {stored_name} in {path}: its model is not supported as it is")
            missing.discard(name)
            if (target := targets[name]) is not None:
                yield _part(name, stored_name, file.get_slice(stored_name), target)
    if missing:
        shown = ", ".join(sorted(missing)[:_NAMES_SHOWN])
        raise StartupError(f"{directory} lacks {len(missing)} tensors of its model: {shown}")


def _part(canonical_name: str, name: str, stored: Any, target: Target) -> _Part:
    shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
    if shape != target.shape and _as_matrix(shape) != target.shape:
        raise StartupError(f"tensor {name} has shape {list(shape)}, config.json says {list(target.shape)}")
    if dtype not in _ITEM_BYTES:
        raise StartupError(f"tensor {name} has dtype {dtype}; only unquantized floating point weights are supported")
    return _Part(canonical_name, stored, target, math.prod(target.into.shape) * _ITEM_BYTES[dtype])


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Weights of a convolution that steps by whole patches, such as [out, 3, height, width], are a matrix [out, in]."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 2 else shape
