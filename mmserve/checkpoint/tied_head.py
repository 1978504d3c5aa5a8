"""Detects an output head that is stored separately although the config ties it to the embedding.

Some fine-tunes trained their own head and kept ``tie_word_embeddings``. The stored head is the right one, and
transformers 5 uses it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_CHUNK_NBYTES = 16 << 20
_MAX_HEADER_NBYTES = 100 << 20
"""The limit of the safetensors library."""


class _HeaderEntry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class _StoredTensor:
    """A tensor's dtype and shape, and the range of its bytes in a file."""

    file: Path
    start: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]

    def same_type(self, other: _StoredTensor) -> bool:
        return (self.dtype, self.shape) == (other.dtype, other.shape)

    def chunks(self) -> Iterator[bytes]:
        with self.file.open("rb") as file:
            file.seek(self.start)
            for remaining in range(self.nbytes, 0, -_CHUNK_NBYTES):
                yield file.read(min(remaining, _CHUNK_NBYTES))


def has_own_head(files: Iterable[Path]) -> bool:
    """True if these safetensors files store an embedding and an output head, and they differ.

    Unreadable files count as False; loading the weights reports them.
    """
    found: dict[str, _StoredTensor] = {}
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        for file in files:
            found |= _read_header(file)
        if _HEAD not in found or _EMBEDDING not in found:
            return False
        head, embedding = found[_HEAD], found[_EMBEDDING]
        if not head.same_type(embedding):
            return True
        return any(one != other for one, other in zip(head.chunks(), embedding.chunks(), strict=True))
    return False


# safetensors' safe_open is not used: without torch it can neither read bfloat16 data nor tell where the data lies.
def _read_header(path: Path) -> dict[str, _StoredTensor]:
    """Embedding and head in the file, if present. Format: https://github.com/huggingface/safetensors#format"""
    with path.open("rb") as file:
        header_nbytes = int.from_bytes(file.read(8), "little")
        if header_nbytes > _MAX_HEADER_NBYTES:
            raise ValueError("no header")
        header = msgspec.json.decode(file.read(header_nbytes), type=dict[str, msgspec.Raw])
    return {
        suffix: _stored_tensor(path, 8 + header_nbytes, msgspec.json.decode(raw, type=_HeaderEntry))
        for suffix in (_EMBEDDING, _HEAD)
        for name, raw in header.items()
        if name.endswith(suffix)
    }


def _stored_tensor(path: Path, data_start: int, entry: _HeaderEntry) -> _StoredTensor:
    start, end = entry.data_offsets
    return _StoredTensor(path, data_start + start, end - start, entry.dtype, tuple(entry.shape))
