"""The table of a GGUF file's tensors, kept as JSON beside the link to the file, under Hugging Face's names.

So the file's key-values, which come before the table and hold the vocabulary, are read once.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mmserve.checkpoint.gguf.reader import GgufTensor
from mmserve.runtime.errors import StartupError

MODEL_FILE, PROJECTOR_FILE = "model.gguf", "mmproj.gguf"
"""Names of the links."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """``dtype``: of ``tensor_types``. ``shape``: of the numbers, whatever block they are in.

    A tensor that converters split has several pieces of ``nbytes`` each, to be joined along ``axis``. With
    ``turned_heads``, rows i and i + dim / 2 of each of so many heads have become neighbours. ``zeros`` of ``shape`` are
    not in the file: so many behind each dimension.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    starts: tuple[int, ...]
    nbytes: int
    axis: int = 0
    turned_heads: int = 0
    zeros: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return max(self.starts) + self.nbytes


def whole(name: str, tensor: GgufTensor) -> Entry:
    """A tensor as it is in the file, under another name."""
    return Entry(name, tensor.kind.name, tensor.shape, (tensor.start,), tensor.nbytes)


def write_table(link: Path, entries: Iterable[Entry]) -> None:
    _table_of(link).write_bytes(msgspec.json.encode([*entries]))


def read_table(link: Path) -> list[Entry]:
    """Raises StartupError if it, or the file, is gone."""
    try:
        entries = msgspec.json.decode(_table_of(link).read_bytes(), type=list[Entry])
        size = link.stat().st_size
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"cannot read the table of {link}: {error}; name the GGUF file again") from None
    if any(entry.end > size for entry in entries):
        raise StartupError(f"{link.resolve()} is not the file that it was: name it again")
    return entries


def _table_of(link: Path) -> Path:
    return link.with_suffix(".gguf.json")
