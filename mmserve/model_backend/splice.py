"""Embedding rows of images, from the arena over the token embeddings, for just the tokens of this step.

A handle is checked before and after the copy: a stale one is a verdict on its own step, never an exception in a
forward pass. With several ranks the verdicts are voted on, so that all compute the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import SequenceStep, SlotFailure
from mmserve.model_backend.batch import Batch
from mmserve.model_backend.parallel import TpGroup
from mmserve.model_backend.slots import SlotTable

_READ, _LOST, _BROKEN = 0, 1, 2
_MESSAGES = {_LOST: "an image's embedding is no longer in the arena", _BROKEN: "an image's embedding is not finite"}


@dataclass(frozen=True)
class Piece:
    """Rows [n, hidden] for a slot's tokens from position ``position`` on."""

    slot: int
    position: int
    rows: torch.Tensor


class Splicer:
    """Reads and places rows. ``like`` gives the rows' dtype and the device they go to."""

    def __init__(self, arena: Arena | None, hidden_size: int, tp: TpGroup, like: torch.Tensor) -> None:
        self._arena, self._hidden_size, self._tp, self._like = arena, hidden_size, tp, like

    def read(self, table: SlotTable, steps: Sequence[SequenceStep]) -> tuple[list[Piece], list[SlotFailure]]:
        """Rows of all spans that the steps touch; the steps whose rows could not be read on every rank."""
        touching = [(step, spans) for step in steps if (spans := _spans(table, step))]
        if not touching:
            return [], []
        pieces: list[Piece] = []
        verdicts = [self._read_step(step, spans, pieces) for step, spans in touching]
        agreed = self._tp.max(torch.tensor(verdicts, device=self._like.device)).tolist()
        failures = [
            SlotFailure(slot=step.slot, media_lost=verdict == _LOST, message=_MESSAGES[verdict])
            for (step, _), verdict in zip(touching, agreed, strict=True)
            if verdict != _READ
        ]
        return pieces, failures

    def place(self, pieces: Sequence[Piece], batch: Batch, hidden: torch.Tensor) -> None:
        """Overwrite the token embeddings [T, hidden] of the pieces' tokens."""
        origin = {step.slot: first - step.start for step, first in zip(batch.steps, batch.first_rows, strict=True)}
        for piece in pieces:
            if piece.slot in origin:
                row = origin[piece.slot] + piece.position
                hidden[row : row + len(piece.rows)] = piece.rows.to(hidden.device)

    def _read_step(self, step: SequenceStep, spans: Sequence[MediaSpan], pieces: list[Piece]) -> int:
        for span in spans:
            first = max(step.start, span.start)
            end = min(step.start + step.num_tokens, span.start + span.num_tokens)
            try:
                rows = self._rows(span, first - span.start, end - span.start)
            except StaleHandle:
                return _LOST
            if not torch.isfinite(rows).all():
                return _BROKEN
            pieces.append(Piece(step.slot, first, rows))
        return _READ

    def _rows(self, span: MediaSpan, first: int, end: int) -> torch.Tensor:
        """Rows [first, end) of a span's embedding, copied. Raises StaleHandle."""
        rows = torch.empty(end - first, self._hidden_size, dtype=self._like.dtype)
        row_nbytes = self._hidden_size * rows.element_size()
        if self._arena is None or span.embed.nbytes != span.num_tokens * row_nbytes:
            raise StaleHandle("no arena, or an embedding of another shape")
        with self._arena.readable(span.embed) as payload:
            wanted = payload[first * row_nbytes : end * row_nbytes]
            rows.view(torch.uint8).numpy().reshape(-1)[:] = np.frombuffer(wanted, dtype=np.uint8)
            wanted.release()
        self._arena.check(span.embed)
        return rows


def _spans(table: SlotTable, step: SequenceStep) -> list[MediaSpan]:
    return table[step.slot].spans_within(step.start, step.num_tokens)
