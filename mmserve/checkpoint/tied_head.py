"""Whether a checkpoint that ties its output head to the embedding stores another head all the same.

Fine-tunes that trained a head of their own often keep ``tie_word_embeddings`` in their config; the stored head is what
they mean (and what transformers 5 takes). Reads headers and, where both are stored, their bytes; judges no weights.
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
"""Safetensors' own limit."""


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True)
class _Stored:
    """One tensor and where its bytes are."""

    file: Path
    start: int
    nbytes: int
    kind: tuple[str, tuple[int, ...]]

    def chunks(self) -> Iterator[bytes]:
        with self.file.open("rb") as file:
            file.seek(self.start)
            for left in range(self.nbytes, 0, -_CHUNK_NBYTES):
                yield file.read(min(left, _CHUNK_NBYTES))


def has_own_head(files: Iterable[Path]) -> bool:
    """Are embedding and head both in these safetensors files, and different? Files that cannot be read say no: whoever
    loads them says what is wrong."""
    found: dict[str, _Stored] = {}
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        for file in files:
            found |= _ends(file)
        if _HEAD not in found or _EMBEDDING not in found:
            return False
        head, embedding = found[_HEAD], found[_EMBEDDING]
        if head.kind != embedding.kind:
            return True
        return any(one != other for one, other in zip(head.chunks(), embedding.chunks(), strict=True))
    return False


def _ends(path: Path) -> dict[str, _Stored]:
    """Those of the two that the file holds. The format: https://github.com/huggingface/safetensors#format"""
    with path.open("rb") as file:
        nbytes = int.from_bytes(file.read(8), "little")
        if nbytes > _MAX_HEADER_NBYTES:
            raise ValueError("no header")
        header = msgspec.json.decode(file.read(nbytes), type=dict[str, msgspec.Raw])
    return {
        wanted: _stored(path, 8 + nbytes, msgspec.json.decode(raw, type=_Entry))
        for wanted in (_EMBEDDING, _HEAD)
        for name, raw in header.items()
        if name.endswith(wanted)
    }


def _stored(path: Path, first: int, entry: _Entry) -> _Stored:
    """``first``: where the file's tensors begin."""
    start, end = entry.data_offsets
    return _Stored(path, first + start, end - start, (entry.dtype, tuple(entry.shape)))
