"""Embedding rows of images, from the arena over the token embeddings, for just the tokens of this step.

Rows go straight from where the encoder wrote them to where the model reads them: on a GPU by asynchronous copies out of
the arena, which is registered with the driver once, otherwise by one copy out of a view. A handle is checked before and
after: a stale one is a verdict on its own step, never an exception in a forward pass. With several ranks the verdicts
are voted on, so that all compute the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import SequenceStep, SlotFailure
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.worker.forward_batch import Batch
from mmserve.model_backend.worker.input_batch import InputBatch

_READ, _BROKEN, _LOST = 0, 1, 2
"""Of several ranks' verdicts the largest counts: rows that one has lost may be broken for the others."""
_MESSAGES = {_LOST: "an image's embedding is no longer in the arena", _BROKEN: "an image's embedding is not finite"}


class _Touching(NamedTuple):
    """A step with tokens of images, and the first of its rows in the batch."""

    step: SequenceStep
    first_row: int
    spans: Sequence[MediaSpan]


class ImageEmbeddingWriter:
    """Copies rows in the platform's dtype to its device."""

    def __init__(self, arena: Arena | None, hidden_size: int, tp: TpGroup, platform: Platform) -> None:
        self._arena, self._tp, self._platform = arena, tp, platform
        self._row_nbytes = hidden_size * platform.dtype.itemsize
        if arena is not None:
            platform.pin(arena)

    def place(self, table: InputBatch, batch: Batch, hidden: torch.Tensor) -> list[SlotFailure]:
        """Overwrite the token embeddings [T, hidden] of image tokens; the steps whose rows some rank could not read.

        The extents are not read any more when this returns.
        """
        touching = [
            _Touching(step, first_row, spans)
            for step, first_row in zip(batch.steps, batch.first_rows, strict=True)
            if (spans := table[step.slot].spans_within(step.start, step.num_tokens))
        ]
        if not touching:
            return []
        verdicts = torch.stack([self._place_step(each, hidden) for each in touching])
        # The leases may be given up once the step's result is out: no copy may be under way then.
        self._platform.wait_for_copies()
        for index, each in enumerate(touching):
            if not self._still_there(each.spans):
                verdicts[index] = _LOST
        return [
            SlotFailure(slot=each.step.slot, media_lost=verdict == _LOST, message=_MESSAGES[verdict])
            for each, verdict in zip(touching, self._tp.max(verdicts).tolist(), strict=True)
            if verdict != _READ
        ]

    def _place_step(self, touching: _Touching, hidden: torch.Tensor) -> torch.Tensor:
        """A verdict, int64 [], as far as it is known before the copies are done."""
        step, verdict = touching.step, torch.tensor(_READ, device=hidden.device)
        try:
            for span in touching.spans:
                first = max(step.start, span.start)
                end = min(step.start + step.num_tokens, span.start + span.num_tokens)
                row = touching.first_row + first - step.start
                rows = hidden[row : row + end - first]
                rows.copy_(self._rows(span, first - span.start, end - span.start).view_as(rows), non_blocking=True)
                verdict = torch.where(torch.isfinite(rows).all(), verdict, _BROKEN)
        except StaleHandle:
            verdict = torch.tensor(_LOST, device=hidden.device)
        return verdict

    def _rows(self, span: MediaSpan, first: int, end: int) -> torch.Tensor:
        """Elements of rows [first, end) of a span's embedding, in place. Raises StaleHandle."""
        if self._arena is None or span.embed.nbytes != span.num_tokens * self._row_nbytes:
            raise StaleHandle("no arena, or an embedding of another shape")
        self._arena.check(span.embed)
        # Torch wraps only memory that may be written to.
        extent = self._arena.writable(span.embed)
        return torch.frombuffer(extent[first * self._row_nbytes : end * self._row_nbytes], dtype=self._platform.dtype)

    def _still_there(self, spans: Sequence[MediaSpan]) -> bool:
        try:
            for span in spans:
                if self._arena is not None:
                    self._arena.check(span.embed)
        except StaleHandle:
            return False
        return True
