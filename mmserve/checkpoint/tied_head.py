"""Detects an output head that is stored separately although the config ties it to the embedding.

Some fine-tunes trained their own head and kept ``tie_word_embeddings``. The stored head is the right one, and
transformers 5 uses it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from mmserve.checkpoint.stored_tensors import StoredTensor, stored_tensors

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"


def has_own_head(files: Iterable[Path]) -> bool:
    """True if these safetensors files store an embedding and an output head, and they differ.

    Unreadable files count as False; loading the weights reports them.
    """
    found: dict[str, StoredTensor] = {}
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        for file in files:
            stored = stored_tensors(file).items()
            found |= {part: tensor for part in (_EMBEDDING, _HEAD) for name, tensor in stored if name.endswith(part)}
        if _HEAD not in found or _EMBEDDING not in found:
            return False
        head, embedding = found[_HEAD], found[_EMBEDDING]
        if not head.same_type(embedding):
            return True
        return any(one != other for one, other in zip(head.chunks(), embedding.chunks(), strict=True))
    return False
