"""The header of a GGUF file: its key-values and its table of tensors. Tensors' numbers are not read.

Every count and size is checked against the rest of the file before it is used, so a damaged file costs no memory.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from mmserve.checkpoint.gguf.tensor_types import OTHERS, TENSOR_TYPES, TensorType
from mmserve.runtime.errors import StartupError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_ENTRIES = 1 << 16
"""Key-values, and tensors."""
_MAX_STRING_NBYTES = 16 << 20
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_SMALLEST_NBYTES = {_STRING: 8, **{kind: struct.calcsize(form) for kind, form in _SCALARS.items()}}
"""Of an element of an array."""

Metadata = dict[str, Any]


class GgufTensor(NamedTuple):
    """``shape``: the outermost dimension first, as torch has it; files store it in reverse. ``start``: of its bytes."""

    name: str
    kind: TensorType
    shape: tuple[int, ...]
    start: int
    nbytes: int


class GgufHeader(NamedTuple):
    metadata: Metadata
    tensors: dict[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """Raises StartupError if the file is damaged, or has a tensor of a type that is not supported."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} is not a readable GGUF file ({error}); fetch it again") from None
    except StartupError as error:
        raise StartupError(f"{path}: {error}") from None


class _Reader:
    """Reads from ``_at`` on. Its methods raise ValueError for a damaged file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def header(self) -> GgufHeader:
        if self._take(4) != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I")
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not among {', '.join(map(str, _VERSIONS))}")
        num_tensors, num_values = self._count("tensors"), self._count("key-values")
        metadata = self._unique(num_values, self._key_value)
        entries = self._unique(num_tensors, self._tensor_entry)
        alignment = _alignment(metadata)
        data_start = _aligned(self._at, alignment)
        tensors = {name: self._tensor(name, entry, data_start) for name, entry in entries.items()}
        for tensor in tensors.values():
            if tensor.start % alignment:
                raise ValueError(f"tensor {tensor.name!r} is not aligned to {alignment} bytes")
        return GgufHeader(metadata, tensors)

    def _unique(self, count: int, read: Callable[[], tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            name, value = read()
            if name in found:
                raise ValueError(f"{name!r} is there twice")
            found[name] = value
        return found

    def _key_value(self) -> tuple[str, Any]:
        return self._string(), self._value(self._number("<I"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"unknown type of value {kind}")
        return self._number(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self._number("<I"), self._number("<Q")
        if kind not in _SMALLEST_NBYTES:
            raise ValueError(f"arrays of type {kind} are not supported")
        if count * _SMALLEST_NBYTES[kind] > len(self._data) - self._at:
            raise ValueError("an array is longer than the file")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        return list(struct.unpack(f"<{count}{_SCALARS[kind][1]}", self._take(count * _SMALLEST_NBYTES[kind])))

    def _tensor_entry(self) -> tuple[str, tuple[tuple[int, ...], int, int]]:
        name, num_dimensions = self._string(), self._number("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions")
        dimensions = tuple(self._number("<Q") for _ in range(num_dimensions))
        return name, (dimensions[::-1], self._number("<I"), self._number("<Q"))

    def _tensor(self, name: str, entry: tuple[tuple[int, ...], int, int], data_start: int) -> GgufTensor:
        shape, number, offset = entry
        if (kind := TENSOR_TYPES.get(number)) is None:
            raise StartupError(
                f"tensor {name} is of type {OTHERS.get(number, number)}, which is not supported; "
                f"supported are {', '.join(each.name for each in TENSOR_TYPES.values())}"
            )
        nbytes, start = _nbytes(name, shape, kind), data_start + offset
        if start + nbytes > len(self._data):
            raise ValueError(f"tensor {name!r} ends behind the file, which is cut off")
        return GgufTensor(name, kind, shape, start, nbytes)

    def _count(self, what: str) -> int:
        found: int = self._number("<Q")
        if found > _MAX_ENTRIES:
            raise ValueError(f"{found} {what} are too many")
        return found

    def _string(self) -> str:
        nbytes = self._number("<Q")
        if nbytes > _MAX_STRING_NBYTES:
            raise ValueError(f"a string of {nbytes} bytes is too long")
        return self._take(nbytes).decode()

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _take(self, nbytes: int) -> bytes:
        found = self._data[self._at : self._at + nbytes]
        if len(found) < nbytes:
            raise ValueError("it is cut off")
        self._at += nbytes
        return found


def _alignment(metadata: Metadata) -> int:
    found = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(found, int) or not 8 <= found <= _MAX_ALIGNMENT or found & (found - 1):
        raise ValueError(f"general.alignment {found!r} is not a small power of two")
    return found


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _nbytes(name: str, shape: tuple[int, ...], kind: TensorType) -> int:
    if 0 in shape:
        raise ValueError(f"tensor {name!r} is empty")
    if shape[-1] % kind.block:
        raise ValueError(f"tensor {name!r} has rows of {shape[-1]} numbers, which {kind.name} cannot store")
    count = 1
    for size in shape:
        count *= size
    return count // kind.block * kind.nbytes
