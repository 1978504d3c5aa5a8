"""Tensors of a GGUF file, as ``safetensors.safe_open`` gives those of its files. Matrices in blocks are bytes."""

from __future__ import annotations

import mmap
from itertools import zip_longest
from pathlib import Path

import torch
import torch.nn.functional as F

from mmserve.checkpoint.gguf.table import Entry, read_table
from mmserve.checkpoint.gguf.tensor_types import QUANTIZED
from mmserve.runtime.errors import StartupError

_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GgufFile:
    """The file is mapped, so that what is not read costs nothing."""

    def __init__(self, link: Path) -> None:
        """Raises StartupError if it cannot be read."""
        self._entries = {entry.name: entry for entry in read_table(link)}
        try:
            with link.open("rb") as file:
                # Copied when written, for torch wants memory that can be; nothing writes.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise StartupError(f"{link.resolve()} cannot be read: {error}") from None

    def keys(self) -> list[str]:
        return list(self._entries)

    def get_slice(self, name: str) -> GgufSlice:
        return GgufSlice(self._entries[name], self._data)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.get_slice(name).tensor


class GgufSlice:
    """``tensor``: the file's own memory, or a copy of what is not whole or in another order there."""

    def __init__(self, entry: Entry, data: mmap.mmap) -> None:
        self._dtype = entry.dtype
        pieces = [_stored(entry, data, start) for start in entry.starts]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces, entry.axis)
        if entry.turned_heads:
            whole = _turned_back(whole, entry.turned_heads)
        self.tensor = (
            F.pad(whole, [each for zeros in entry.zeros[::-1] for each in (0, zeros)]) if entry.zeros else whole
        )

    def get_shape(self) -> list[int]:
        return list(self.tensor.shape)

    def get_dtype(self) -> str:
        return self._dtype

    def __getitem__(self, index: tuple[slice, ...]) -> torch.Tensor:
        return self.tensor[index]


def _stored(entry: Entry, data: mmap.mmap, start: int) -> torch.Tensor:
    """A piece, with its own size along the axis of pieces."""
    shape = [size - zeros for size, zeros in zip_longest(entry.shape, entry.zeros, fillvalue=0)]
    shape[entry.axis] //= len(entry.starts)
    stored = torch.frombuffer(data, dtype=torch.uint8, count=entry.nbytes, offset=start)
    if (kind := QUANTIZED.get(entry.dtype)) is not None:
        return stored.view(*shape[:-1], shape[-1] // kind.block * kind.nbytes)
    return stored.view(_FLOATS[entry.dtype]).view(shape)


def _turned_back(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Of each head, the first row of all pairs, then the second ones."""
    return rows.view(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
