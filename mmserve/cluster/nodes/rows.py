"""Which embedding rows the steps of a plan compute, read from the arena for ranks that are on other machines.

Rows travel with the plan that computes them, so that a node needs no arena and can never read rows of another picture.
A plan has at most --max-num-batched-tokens of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.step import RowPiece, SequenceStep, StepPlan


class PlannedRows:
    """Follows the plans of one engine, in their order: a step names a slot, and a plan before it the slot's images."""

    def __init__(self, arena: Arena, row_nbytes: int) -> None:
        self._arena = arena
        self._row_nbytes = row_nbytes
        self._spans: dict[int, tuple[MediaSpan, ...]] = {}

    def of(self, plan: StepPlan) -> tuple[RowPiece, ...]:
        """The rows; without those whose handle is stale, or that are not in their embedding."""
        for slot in plan.free:
            self._spans.pop(slot, None)
        self._spans.update((sequence.slot, sequence.spans) for sequence in plan.new)
        wanted = dict.fromkeys(place for step in plan.steps for place in self._places(step))
        return tuple(piece for place in wanted if (piece := self._read(*place)) is not None)

    def _places(self, step: SequenceStep) -> Iterator[tuple[Handle, int, int]]:
        for span in self._spans.get(step.slot, ()):
            first = max(step.start, span.start) - span.start
            end = min(step.start + step.num_tokens - span.start, span.num_tokens)
            if first < end:
                yield span.embed, (span.first_row + first) * self._row_nbytes, (span.first_row + end) * self._row_nbytes

    def _read(self, embed: Handle, start: int, end: int) -> RowPiece | None:
        if end > embed.nbytes:
            return None
        try:
            self._arena.check(embed)
            rows = bytearray(self._arena.part(embed, start, end))
            self._arena.check(embed)
        except StaleHandle:
            return None
        return RowPiece(embed, start, rows)
