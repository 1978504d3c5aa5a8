"""Token embedding and output head, with the vocabulary split over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import LinearLayer
from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearShape
from mmserve.model_backend.layers.target import LinearShard, Target

_ROW_MULTIPLE = 16
"""What quantized formats need; some vocabularies are of another size, as InternVL3's of 151674 tokens."""


class VocabParallelEmbedding(LinearLayer):
    """One row per token id: looked up as the embedding, or multiplied with as the head (both when tied).

    All ranks' shards have the same size, a multiple of ``_ROW_MULTIPLE``, so the last ones may be padded.
    """

    method: EmbeddingMethod

    def __init__(self, name: str, vocab_size: int, hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._name, self._shape, self._tp = context.prefix + name, (vocab_size, hidden_size), context.tp
        shard_size = -(-vocab_size // (context.tp.size * _ROW_MULTIPLE)) * _ROW_MULTIPLE
        self._first = min(context.tp.rank * shard_size, vocab_size)
        self._used = min(shard_size, vocab_size - self._first)
        self.method = context.embedding_method(LinearShape(shard_size, hidden_size, self._used, (self._name,)))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] within the vocabulary -> [T, hidden] on every rank."""
        if self._tp.size == 1:
            return self.method.rows(token_ids)
        local = token_ids - self._first
        elsewhere = (local < 0) | (local >= self._used)
        rows = self.method.rows(local.masked_fill_(elsewhere, 0))
        return self._tp.sum(rows.masked_fill_(elsewhere[:, None], 0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> [S, vocab] on rank 0, None on the others."""
        gathered = self._tp.gather_columns(self.method.apply(hidden))
        return None if gathered is None else gathered[:, : self._shape[0]]

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.method.targets(
            LinearShard(self._name, self._shape, slice(0, self._used), dim=0, start=self._first)
        )
