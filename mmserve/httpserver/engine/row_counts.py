"""Asks a visual server what images become in a prompt, for models whose image processor only transformers has.

Answers are kept by size. Requests wait for an answer with a deadline. The question is repeated when one has waited in
vain, and after the visual server has restarted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.httpserver.call import MediaItem
from mmserve.messages.media import ExpandedImage, Size
from mmserve.messages.reply import ImageRows, ServerPhase
from mmserve.messages.request import CountImageRows
from mmserve.processors.families.transformers import counted
from mmserve.runtime.errors import MediaError, MmserveError, Unavailable
from mmserve.runtime.retry_after import AFTER_CACHE_RESTART_S

TIMEOUT_S = 10.0
"""A question takes milliseconds, if the visual server runs. Starting one with transformers takes seconds."""
MAX_KNOWN = 4096
"""Sizes. The one that was used least recently is forgotten first."""


class Links(Protocol):
    """Implemented by links.EngineLinks."""

    def count(self, visual_server: int, message: CountImageRows) -> None: ...


class RowCounts:
    """One per worker; used from its event loop only."""

    def __init__(
        self, worker: int, vision: GenericVision, links: Links, visual_server: int, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """``visual_server``: index of the one that is asked."""
        self._worker, self._vision, self._links = worker, vision, links
        self._visual_server, self._timeout_s = visual_server, timeout_s
        self._known: OrderedDict[Size, ExpandedImage | None] = OrderedDict()
        self._asked: dict[Size, asyncio.Future[ExpandedImage | None]] = {}
        self._phase: ServerPhase | None = None

    async def with_counts(self, items: Sequence[MediaItem]) -> list[MediaItem]:
        """The items with what they become. Raises MediaError with the image's ``param``, or Unavailable."""
        sizes = dict.fromkeys((item.width, item.height) for item in items)
        found = {size: self._known[size] for size in sizes if size in self._known}
        for size in found:
            self._known.move_to_end(size)
        self._ask([size for size in sizes if size not in found and size not in self._asked])
        answers = {size: self._asked[size] for size in sizes if size not in found}
        try:
            async with asyncio.timeout(self._timeout_s):
                for size, answer in answers.items():
                    found[size] = await asyncio.shield(answer)
        except TimeoutError:
            self._send([size for size in answers if size in self._asked])  # others may still wait for it
            raise Unavailable(
                "the visual server has not counted the tokens of an image in time", retry_after_s=AFTER_CACHE_RESTART_S
            ) from None
        return [self._with_count(item, found[item.width, item.height]) for item in items]

    def deliver(self, answer: ImageRows) -> None:
        """An answer of a visual server."""
        for size, image in zip(answer.sizes, answer.expansions, strict=True):
            self._known[size] = image
            if (future := self._asked.pop(size, None)) is not None and not future.done():
                future.set_result(image)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def on_phase(self, phase: ServerPhase) -> None:
        """Ask again what a visual server that has restarted was asked."""
        before, self._phase = self._phase, phase
        index = self._visual_server
        if before is not None and phase.visual_epoch(index) > before.visual_epoch(index):
            self._send([*self._asked])

    def _ask(self, sizes: Sequence[Size]) -> None:
        loop = asyncio.get_running_loop()
        self._asked |= {size: loop.create_future() for size in sizes}
        self._send(sizes)

    def _send(self, sizes: Sequence[Size]) -> None:
        if sizes:
            self._links.count(self._visual_server, CountImageRows(reply_to=self._worker, sizes=tuple(sizes)))

    def _with_count(self, item: MediaItem, image: ExpandedImage | None) -> MediaItem:
        try:
            if image is None:
                raise MediaError("the model's image processor cannot process an image of this size")
            return replace(item, counted=counted(self._vision, image))
        except MmserveError as error:
            error.param = item.param
            raise
