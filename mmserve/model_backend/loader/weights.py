"""Streams a checkpoint's safetensors or GGUF files into the parts of parameters that this process holds.

A model says where each tensor goes (``Target``). Only that part is read from the file, whose pages are mapped: nothing
is copied in host memory but what the platform's copies need (``weight_copy``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from mmserve.checkpoint.files import weight_files
from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.model_backend.layers.target import Targets
from mmserve.model_backend.loader.gguf_file import GgufFile
from mmserve.model_backend.loader.stored_parts import StoredPart, stored_parts
from mmserve.model_backend.weight_copy import Copy, plain_copy
from mmserve.runtime.errors import StartupError

Progress = Callable[[int, int, str], None]
"""(done, total, unit)"""
CanonicalName = Callable[[str], str | None]
"""Stored tensor name -> the name used here, None for a tensor to skip."""
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_ITEM_BYTES = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I8": 1, "F8_E4M3": 1}
_EXACT = {"I32": (torch.int32,), "I8": (torch.int8,), "F8_E4M3": (torch.float8_e4m3fn,)}
_BLOCKS = dict.fromkeys(QUANTIZED, (torch.uint8,))
_READ_AS = dict.fromkeys(_ITEM_BYTES, _FLOATS) | _EXACT | _BLOCKS
"""Whole numbers are those of quantized weights, and are read as they are."""
_NAMES_SHOWN = 3


def load(
    directory: str | Path,
    namespaces: tuple[str, ...],
    canonical_name: CanonicalName,
    targets: Targets,
    progress: Progress,
    loaded: Callable[[str], object] = lambda name: None,
    copy: Copy = plain_copy,
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
        part.load(copy)
        loaded(part.canonical_name)
        done_nbytes += part.nbytes
        progress(done_nbytes, total_nbytes, "bytes")


@dataclass(frozen=True)
class _Part:
    """A parameter and the tensor of an open file that holds it."""

    slice: Any
    stored: StoredPart
    nbytes: int

    @property
    def canonical_name(self) -> str:
        return self.stored.name

    def load(self, copy: Copy) -> None:
        target = self.stored.target
        if target.into.is_meta:
            return  # A model without memory: only names, shapes and dtypes are checked.
        copy(target.into, self.stored.read(self.slice))
        if target.offset:
            target.into.add_(target.offset)


def _parts(
    directory: Path, namespaces: tuple[str, ...], canonical_name: CanonicalName, targets: Targets
) -> Iterator[_Part]:
    missing = {name for name, target in targets.items() if target is not None}
    for path in weight_files(directory):
        file = _opened(path)
        for stored_name in file.keys():  # noqa: SIM118 (no mapping)
            name = canonical_name(stored_name)
            if name is None or not name.startswith(namespaces):
                continue
            stored = file.get_slice(stored_name)
            if _adds_nothing(name, stored, targets):
                continue
            shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
            target = targets.get(name)
            if target is not None and _is_same_list(shape, target.shape):
                shape, stored = target.shape, file.get_tensor(stored_name).reshape(target.shape)
            for part in stored_parts(stored_name, name, shape, targets):
                missing.discard(part.name)
                yield _part(stored_name, stored, dtype, part)
    if missing:
        shown = ", ".join(sorted(missing)[:_NAMES_SHOWN])
        raise StartupError(f"{directory} lacks {len(missing)} tensors of its model: {shown}")


def _opened(path: Path) -> Any:
    if path.suffix == ".gguf":
        return GgufFile(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise StartupError(f"{path} is not a readable safetensors file ({error}); fetch it again") from error


def _adds_nothing(name: str, stored: Any, targets: Targets) -> bool:
    """AutoGPTQ stored a bias of zeros beside every quantized matrix, also in models without biases."""
    matrix, _, last = name.rpartition(".")
    beside_codes = last == "bias" and name not in targets and f"{matrix}.qweight" in targets
    return beside_codes and not bool(stored[:].any())


def _is_same_list(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """One list of numbers in another shape, as scales are stored: [], [1] or [1, 1], and [n] or [n, 1]."""
    lists = [tuple(size for size in each if size != 1) for each in (shape, expected)]
    return shape != expected and lists[0] == lists[1] and len(lists[0]) <= 1


def _part(stored_name: str, stored: Any, dtype: str, part: StoredPart) -> _Part:
    into = part.target.into
    if into.dtype not in _READ_AS.get(dtype, ()):
        raise StartupError(f"tensor {stored_name} has dtype {dtype}, which is not that of its model's weights")
    return _Part(stored, part, into.numel() * _ITEM_BYTES.get(dtype, 1))
