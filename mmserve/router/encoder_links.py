"""Sends the router's messages to the visual servers, and chooses the one that encodes an image."""

from __future__ import annotations

from collections.abc import Iterable

from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.request import AbortRequest, EncodeRequest, VisualInbound

_MULTIPLIER = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, for Fibonacci hashing (Knuth, volume 3, 6.4). Item ids often grow in equal steps (requests with
equally many images); taken modulo the number of visual servers they could all select the same one."""


def encoder_for(item_id: int, visual_workers: int) -> int:
    """Index of the visual server that encodes an image. The same for as long as the image is in the arena."""
    return (item_id * _MULTIPLIER % (1 << 64) >> 32) % visual_workers


class EncoderLinks:
    """One sender for each visual server. Sending never blocks; messages to a dead process wait for its successor."""

    def __init__(self, endpoints: Endpoints, visual_workers: int) -> None:
        self._senders: list[Sender[VisualInbound]] = [
            Sender(endpoints.visual(index), VisualInbound) for index in range(visual_workers)
        ]

    @property
    def has_any(self) -> bool:
        """False for a text model."""
        return bool(self._senders)

    def send_all(self, messages: Iterable[tuple[int, EncodeRequest | AbortRequest]]) -> None:
        """Sends each message to the visual server of the item id before it.

        An image always goes to the same visual server, so that requests for it at the same time share its encoding.
        """
        for item_id, message in messages:
            self._senders[encoder_for(item_id, len(self._senders))].send(message)

    def close(self) -> None:
        for sender in self._senders:
            sender.close()
