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
    """``dtype``: of ``tensor_types``. ``shape``: of the numbers, whatever block they are in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


def write_table(link: Path, tensors: Iterable[GgufTensor]) -> None:
    entries = [Entry(each.name, each.kind.name, each.shape, each.start, each.nbytes) for each in tensors]
    _table_of(link).write_bytes(msgspec.json.encode(entries))


def read_table(link: Path) -> list[Entry]:
    """Raises StartupError if it, or the file, is gone."""
    try:
        entries = msgspec.json.decode(_table_of(link).read_bytes(), type=list[Entry])
        size = link.stat().st_size
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(f"cannot read the table of {link}: {error}; name the GGUF file again") from None
    if any(entry.start + entry.nbytes > size for entry in entries):
        raise StartupError(f"{link.resolve()} is not the file that it was: name it again")
    return entries


def _table_of(link: Path) -> Path:
    return link.with_suffix(".gguf.json")
