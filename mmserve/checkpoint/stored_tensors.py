"""Names, types and places of the tensors in a safetensors or GGUF file, without reading them.

Format: https://github.com/huggingface/safetensors#format. The library's safe_open is not used: without torch it can
neither read bfloat16 data nor tell where the data lies.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmserve.checkpoint.files import weight_files
from mmserve.checkpoint.gguf.table import Entry, read_table
from mmserve.runtime.errors import StartupError

CHUNK_NBYTES = 16 << 20
_MAX_HEADER_NBYTES = 100 << 20
"""The limit of the safetensors library."""
_METADATA = "__metadata__"


class _HeaderEntry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's dtype and shape, and the ranges of its bytes in a file."""

    file: Path
    starts: tuple[int, ...]
    """Several if it lies there in pieces, which are of one size."""
    nbytes: int
    """Of all pieces."""
    dtype: str
    """As safetensors calls it, such as ``BF16``, or GGUF, such as ``Q4_K``."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def is_stored_as(self, dtypes: Container[str]) -> bool:
        return self.dtype in dtypes

    def same_type(self, other: StoredTensor) -> bool:
        return (self.dtype, self.shape) == (other.dtype, other.shape)

    def chunks(self) -> Iterator[bytes]:
        with self.file.open("rb") as file:
            for start in self.starts:
                file.seek(start)
                for remaining in range(self.nbytes // len(self.starts), 0, -CHUNK_NBYTES):
                    yield file.read(min(remaining, CHUNK_NBYTES))


def checkpoint_tensors(directory: Path) -> Iterator[tuple[str, StoredTensor]]:
    """Of all files, with their names. Raises StartupError if a file is missing or has no readable header."""
    for path in weight_files(directory):
        try:
            tensors = stored_tensors(path)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            raise StartupError(f"{path} is not a readable safetensors file ({error}); fetch it again") from error
        yield from tensors.items()


def stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """By name. Raises OSError, ValueError or MsgspecError if the file has no readable header."""
    if path.suffix == ".gguf":
        return {each.name: _of_gguf(path, each) for each in read_table(path)}
    with path.open("rb") as file:
        header_nbytes = int.from_bytes(file.read(8), "little")
        if header_nbytes > _MAX_HEADER_NBYTES:
            raise ValueError("no header")
        header = msgspec.json.decode(file.read(header_nbytes), type=dict[str, msgspec.Raw])
    return {
        name: _stored_tensor(path, 8 + header_nbytes, msgspec.json.decode(raw, type=_HeaderEntry))
        for name, raw in header.items()
        if name != _METADATA
    }


def _stored_tensor(path: Path, data_start: int, entry: _HeaderEntry) -> StoredTensor:
    start, end = entry.data_offsets
    return StoredTensor(path, (data_start + start,), end - start, entry.dtype, tuple(entry.shape))


def _of_gguf(path: Path, entry: Entry) -> StoredTensor:
    return StoredTensor(path, entry.starts, len(entry.starts) * entry.nbytes, entry.dtype, entry.shape)
