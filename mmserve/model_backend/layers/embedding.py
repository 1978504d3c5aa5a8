"""Token embedding and output head with the vocabulary split over the ranks (the last shards may be padded)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.config.config import Quantization
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import empty, pack_weight
from mmserve.model_backend.layers.packed_linear import multiply, rows_of
from mmserve.model_backend.loader.weights import Target


class VocabParallelTable(nn.Module):
    """One row per token id: looked up as the embedding, or multiplied with as the head (both when tied)."""

    def __init__(self, vocab_size: int, hidden_size: int, *, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self._vocab_size, self._tp = vocab_size, tp
        shard_size = -(-vocab_size // tp.size)
        self._first = min(tp.rank * shard_size, vocab_size)
        self._rows = min(shard_size, vocab_size - self._first)
        self.weight = empty(shard_size, hidden_size, like=like)
        self.weight[self._rows :].zero_()

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] within the vocabulary -> [T, hidden] on every rank."""
        if self._tp.size == 1:
            return rows_of(self.weight, token_ids)
        local = token_ids - self._first
        elsewhere = (local < 0) | (local >= self._rows)
        rows = rows_of(self.weight, local.masked_fill_(elsewhere, 0))
        return self._tp.sum(rows.masked_fill_(elsewhere[:, None], 0))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> [S, vocab] on rank 0, None on the others."""
        gathered = self._tp.gather_columns(multiply(hidden, self.weight, None))
        return None if gathered is None else gathered[:, : self._vocab_size]

    def pack(self, quantization: Quantization) -> None:
        """Bring the loaded rows into the layout that is fastest to multiply with, if they can still be looked up."""
        pack_weight(self, quantization, look_up=True)

    def targets(self, name: str) -> Iterator[tuple[str, Target]]:
        shape = (self._vocab_size, self.weight.shape[1])
        yield name, Target(self.weight[: self._rows], shape, start=self._first)
