"""The router's inbox, which is read between steps and, for some messages, while the ranks compute one."""

from __future__ import annotations

from collections import deque

from mmserve.ipc.links.channel import Receiver
from mmserve.messages.request import AskStages, EngineInbound, GenerateRequest, ImagesEncoded


class Inbox:
    """Hands out messages in the order of their arrival.

    New requests and the news of encoded images may be handled at any time, so that images are asked for at once, and so
    may questions. All others end sequences; the replies to those must wait for the results of the plans that compute
    them.
    """

    def __init__(self, receiver: Receiver[EngineInbound]) -> None:
        self.receiver = receiver
        self._held: deque[EngineInbound] = deque()
        """Received, but only to be handled between steps."""

    def take(self, *, block: bool, timeout_s: float) -> list[EngineInbound]:
        """All messages, between steps. ``block``: wait for the first, at most timeout_s."""
        messages = [*self._held, *self.receiver.drain(block=block and not self._held, timeout_s=timeout_s)]
        self._held.clear()
        return messages

    @property
    def is_held(self) -> bool:
        """True if ``take_early`` has met a message that must wait: it returns nothing more before the next ``take``."""
        return bool(self._held)

    def take_early(self) -> list[EngineInbound]:
        """Messages that may be handled while a step is computed: all before the first one that may not."""
        self._held += self.receiver.drain(block=False)
        early: list[EngineInbound] = []
        while self._held and _may_be_early(self._held[0]):
            early.append(self._held.popleft())
        return early


def _may_be_early(message: EngineInbound) -> bool:
    """A later attempt replaces an earlier one, which a plan in flight may compute."""
    is_first = isinstance(message, GenerateRequest) and not message.attempt
    return is_first or isinstance(message, ImagesEncoded | AskStages)
