"""Asks the visual servers for the images that sequences need. Pure: no clock, no I/O.

A sequence does not need an image whose keys and values it finds in the prefix cache. That is known for certain only
when it starts, as cached blocks may be evicted while it waits. So it is asked for again whenever a sequence arrives,
may start, or stops running.
"""

from __future__ import annotations

from mmserve.messages.media import MediaSpan
from mmserve.messages.request import AbortRequest, EncodeRequest, ImagesEncoded
from mmserve.router.scheduler.sequence import Sequence


class ImageRequests:
    """Requests to the visual servers that are not answered yet; at most one for each sequence."""

    def __init__(self) -> None:
        self._unanswered: dict[Sequence, tuple[int, set[int]]] = {}
        """Sequence -> (the item id by which a visual server was chosen, images that are not encoded yet)."""
        self._messages: list[tuple[int, EncodeRequest | AbortRequest]] = []

    def take_messages(self) -> list[tuple[int, EncodeRequest | AbortRequest]]:
        """(item id that selects a visual server, message) since the last call, in order."""
        messages, self._messages = self._messages, []
        return messages

    @property
    def awaits_any(self) -> bool:
        """True if a visual server has been asked for images that are not encoded yet."""
        return bool(self._unanswered)

    def awaits(self, sequence: Sequence) -> bool:
        """True if a visual server has been asked for images of the sequence that are not encoded yet."""
        return sequence in self._unanswered

    def ask(self, sequence: Sequence, num_computed: int) -> None:
        """Asks for all images with rows after the first ``num_computed`` tokens, unless a request is unanswered."""
        if sequence in self._unanswered:
            return
        needed: dict[int, MediaSpan] = {}
        for span in sequence.request.spans:
            if span.item_id in sequence.not_encoded and span.start + span.num_tokens > num_computed:
                needed.setdefault(span.item_id, span)
        if not needed:
            return
        first, request = next(iter(needed)), sequence.request
        message = EncodeRequest(
            id=request.id,
            reply_to=request.reply_to,
            spans=tuple(needed.values()),
            arrival_s=request.arrival_s,
            attempt=request.attempt,
            number=sequence.num_encode_requests,
        )
        sequence.num_encode_requests += 1
        self._unanswered[sequence] = first, set(needed)
        self._messages.append((first, message))

    def encoded(self, sequence: Sequence, message: ImagesEncoded) -> None:
        """Images of the sequence are in the arena."""
        sequence.not_encoded = sequence.not_encoded.difference(message.item_ids)
        if sequence in self._unanswered:
            _, missing = self._unanswered[sequence]
            missing.difference_update(message.item_ids)
            if not missing:
                del self._unanswered[sequence]

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended. What it has asked for is not wanted any more."""
        if sequence in self._unanswered:
            first, _ = self._unanswered.pop(sequence)
            request = sequence.request
            abort = AbortRequest(id=request.id, reply_to=request.reply_to, attempt=request.attempt)
            self._messages.append((first, abort))
