"""Copies image embeddings from the arena over the token embeddings of one step.

Rows go from where the encoder wrote them to where the model reads them: on a GPU by its copy engines, which wait for
no step that was launched before (``row_copies``), otherwise by one copy out of a view. Handles are checked before and
after the copies. A stale handle fails the step of its own sequence, not the forward pass. With several ranks the
statuses are reduced to the worst of all ranks, so that all ranks compute the same batch.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import MediaSpan
from mmserve.messages.step import SequenceStep, SlotFailure
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.models.interface import DeepStackRows
from mmserve.model_backend.platforms.device import is_fatal_device_error
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.transfers import HostCopy
from mmserve.model_backend.worker.embedding_source import EmbeddingSource
from mmserve.model_backend.worker.forward_batch import ForwardBatch
from mmserve.model_backend.worker.input_batch import InputBatch

_READ, _BROKEN, _LOST, _FAILED = 0, 1, 2, 3
"""Status of a step, worst last: embeddings that are lost for one rank may be read as not finite by another."""
_MESSAGES = {
    _BROKEN: "an image's embedding is not finite",
    _LOST: "an image's embedding is no longer in the arena",
    _FAILED: "internal error: a rank could not read an image's embedding",
}

logger = logging.getLogger(__name__)


class _Piece(NamedTuple):
    """Rows [first, end) of a span, which a step computes."""

    span: MediaSpan
    first: int
    end: int
    row: int
    """Index of the first one in the batch."""
    offset: int
    """Of the first one among all image rows of the batch."""


class _ChunkWithImages(NamedTuple):
    """A step that computes image tokens."""

    step: SequenceStep
    pieces: Sequence[_Piece]


def _chunks_with_images(input_batch: InputBatch, batch: ForwardBatch) -> list[_ChunkWithImages]:
    chunks, num_rows = [], 0
    for step, first_row in zip(batch.steps, batch.first_rows, strict=True):
        pieces = []
        for span in input_batch[step.slot].spans_within(step.start, step.num_tokens):
            first = max(step.start, span.start) - span.start
            end = min(step.start + step.num_tokens - span.start, span.num_tokens)
            pieces.append(_Piece(span, first, end, first_row + span.start + first - step.start, num_rows))
            num_rows += end - first
        if pieces:
            chunks.append(_ChunkWithImages(step, pieces))
    return chunks


class ImageEmbeddingWriter:
    """Copies embedding rows, in the platform's dtype, to the platform's device.

    A row is ``streams`` times the hidden size wide: the token's embedding, then what is added after the first layers.
    """

    def __init__(
        self, source: EmbeddingSource | None, hidden_size: int, tp: TpGroup, platform: Platform, streams: int = 1
    ) -> None:
        self._source, self._tp, self._platform, self._streams = source, tp, platform, streams
        self._row_nbytes = streams * hidden_size * platform.dtype.itemsize
        self._copies = platform.row_copies(source if isinstance(source, Arena) else None)
        self._transfers = platform.transfers()

    def scatter(
        self, input_batch: InputBatch, batch: ForwardBatch, hidden: torch.Tensor
    ) -> tuple[list[SlotFailure], DeepStackRows | None]:
        """Overwrite the token embeddings [T, hidden] of image tokens.

        Returns a failure for each step whose embeddings some rank could not read, and the rows' further streams. The
        arena is not read any more when this returns or raises: it waits for its own copies, and with several ranks for
        the others' statuses.
        """
        chunks = _chunks_with_images(input_batch, batch)
        if not chunks:
            return [], None
        deepstack = self._deepstack_rows(chunks, hidden) if self._streams > 1 else None
        try:
            begun = [self._begin(chunk, hidden, deepstack) for chunk in chunks]
        finally:
            # The leases end once the step's result, or its error, is known: no copy may be under way then.
            self._copies.wait()
        statuses = self._tp.worst([self._status(chunk, *each) for chunk, each in zip(chunks, begun, strict=True)])
        failures = [
            SlotFailure(slot=chunk.step.slot, media_lost=status == _LOST, message=_MESSAGES[status])
            for chunk, status in zip(chunks, statuses, strict=True)
            if status != _READ
        ]
        return failures, deepstack

    def _deepstack_rows(self, chunks: Sequence[_ChunkWithImages], hidden: torch.Tensor) -> DeepStackRows:
        """Of all image rows of the batch, with values that are still to be written."""
        pieces = [piece for chunk in chunks for piece in chunk.pieces]
        rows = torch.cat([torch.arange(piece.row, piece.row + piece.end - piece.first) for piece in pieces])
        values = hidden.new_empty(self._streams - 1, len(rows), hidden.shape[1])
        return DeepStackRows(self._transfers.to_device(rows), values)

    def _begin(
        self, chunk: _ChunkWithImages, hidden: torch.Tensor, deepstack: DeepStackRows | None
    ) -> tuple[int, HostCopy | None]:
        """The status so far, and whether the numbers of each piece are finite, if they are being copied."""
        try:
            rows, finite = self._copies.read([self._rows(each.span, each.first, each.end) for each in chunk.pieces])
            for piece, numbers in zip(chunk.pieces, rows, strict=True):
                self._place(piece, numbers, hidden, deepstack)
        except StaleHandle:
            return _LOST, None
        except Exception as error:  # the boundary of one sequence
            # One rank tries the step again in parts. Several ranks only meet again where they compare statuses.
            if self._tp.size == 1 or is_fatal_device_error(error):
                raise
            logger.exception("the embedding of an image could not be read")
            return _FAILED, None
        return _READ, finite

    def _place(self, piece: _Piece, rows: torch.Tensor, hidden: torch.Tensor, deepstack: DeepStackRows | None) -> None:
        count = piece.end - piece.first
        wide = rows.view(count, self._streams, -1)
        hidden[piece.row : piece.row + count].copy_(wide[:, 0])
        if deepstack is not None:
            deepstack.values[:, piece.offset : piece.offset + count] = wide[:, 1:].transpose(0, 1)

    def _status(self, chunk: _ChunkWithImages, so_far: int, finite: HostCopy | None) -> int:
        """Once the copies are over."""
        if not self._is_valid(chunk):
            return _LOST
        return so_far if finite is None or bool(finite.wait().all()) else _BROKEN

    def _rows(self, span: MediaSpan, first: int, end: int) -> torch.Tensor:
        """View of the elements of rows [first, end) of a span's embedding. Raises StaleHandle."""
        if self._source is None or span.embed.nbytes < (span.first_row + span.num_tokens) * self._row_nbytes:
            raise StaleHandle("no embeddings, or one of another shape")
        self._source.check(span.embed)
        # torch.frombuffer warns about memory that is read-only.
        first, end = (span.first_row + first) * self._row_nbytes, (span.first_row + end) * self._row_nbytes
        return torch.frombuffer(self._source.part(span.embed, first, end), dtype=self._platform.dtype)

    def _is_valid(self, chunk: _ChunkWithImages) -> bool:
        try:
            for piece in chunk.pieces:
                if self._source is not None:
                    self._source.check(piece.span.embed)
        except StaleHandle:
            return False
        return True
