"""Sends pictures that wait here to encoders of other machines, where that is faster. Lives on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from mmserve.cache_server.client import MediaCacheClient
from mmserve.runtime.errors import Unavailable
from mmserve.visualserver.batches.encode import reported
from mmserve.visualserver.images import ENCODED, LOST, Image, Outcome
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.remote.choice import Pace, choose
from mmserve.visualserver.remote.encoder_link import EncoderLink, NotEncoded, Place
from mmserve.visualserver.remote.encoders import Encoders

_ATTEMPTS = 2
"""Encoders that a picture may go to, one after another. It may be what ends them."""
_LOOKS_AT = 64
"""Pictures that wait, the oldest first."""
logger = logging.getLogger(__name__)


class Offload:
    """``finish``: called with the outcome of a picture by its item id. ``on_change``: called when one is given back."""

    def __init__(self, queue: BatchQueue, encoders: Encoders, cache: MediaCacheClient) -> None:
        self._queue, self._encoders, self._cache = queue, encoders, cache
        self._calls = ThreadPoolExecutor(1, "offload")
        self._running: dict[int, asyncio.Task[None]] = {}
        self._stay: set[int] = set()
        """Pictures that no encoder has encoded: they are encoded here."""
        self._here = Pace()
        self.finish: Callable[[dict[int, Outcome]], None] = lambda outcomes: None
        self.on_change: Callable[[], None] = lambda: None
        encoders.on_change = lambda: self.on_change()

    async def run(self) -> None:
        """Accept encoders until cancelled."""
        await self._encoders.run()

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()
        self._encoders.close()
        self._calls.shutdown(wait=False, cancel_futures=True)

    def encoded_here(self, num_images: int, seconds: float) -> None:
        """The tower of this machine has encoded so many pictures in this time. They were decoded beside it."""
        if num_images:
            self._here.encoded(seconds / num_images)

    def start(self) -> None:
        """Send what should be sent now. Call it after each change of the queue."""
        self._end_leases()
        if not (links := self._encoders.links):
            return
        ahead = self._queue.num_in_flight - len(self._running)
        for image in self._queue.waiting_images(_LOOKS_AT):
            link = None if image.item_id in self._stay else self._choose(image, links, ahead)
            if link is None:
                ahead += 1
                continue
            self._queue.take(image)
            task = asyncio.create_task(self._encode(image, link.place(image.data.nbytes)))
            self._running[image.item_id] = task

    def _end_leases(self) -> None:
        """Of pictures that came back and have left the queue: if nobody needed them any more, no other work on them
        has ended the cache server's lease."""
        if self._stay and (done := self._stay - self._queue.item_ids):
            self._stay -= done
            self._calls.submit(reported, self._cache, dict.fromkeys(done, LOST))

    def _choose(self, image: Image, links: list[EncoderLink], ahead: int) -> EncoderLink | None:
        with_room = {link.name: link for link in links if link.has_room(image.data.nbytes)}
        candidates = [link.candidate() for link in with_room.values()]
        key = image.key or image.item_id.to_bytes(8, "big", signed=True)
        chosen = choose(key, image.data.nbytes + image.embed.nbytes, candidates, self._here, ahead)
        return None if chosen is None else with_room[chosen.name]

    async def _encode(self, image: Image, place: Place) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._outcome(image, place)
        except Exception:  # the boundary of one picture
            logger.exception("image %d could not be encoded on another machine", image.item_id)
        finally:
            place.close()
            del self._running[image.item_id]
            if outcome is None:
                self._stay.add(image.item_id)
                self._queue.give_back(image)
        self.finish({image.item_id: outcome}) if outcome is not None else self.on_change()

    async def _outcome(self, image: Image, place: Place) -> Outcome | None:
        """None: no encoder has rows for it."""
        loop = asyncio.get_running_loop()
        try:
            (state,) = await loop.run_in_executor(self._calls, self._cache.get_items_embed, (image.item_id,))
        except Unavailable:
            return LOST
        if state != "pending":
            return ENCODED if state == "ready" else LOST
        if not await self._rows_came(image, place):
            return None
        outcomes = await loop.run_in_executor(self._calls, reported, self._cache, {image.item_id: ENCODED})
        return outcomes[image.item_id]

    async def _rows_came(self, image: Image, place: Place) -> bool:
        tried: set[str] = set()
        while True:
            with closing(place):
                tried.add(place.link.name)
                try:
                    await place.link.encode(image)
                except NotEncoded as error:
                    logger.info("an encoder has not encoded image %d: %s", image.item_id, error)
                else:
                    return True
            others = [link for link in self._encoders.links if link.name not in tried]
            others = [link for link in others if link.has_room(image.data.nbytes)]
            if len(tried) >= _ATTEMPTS or not others:
                return False
            place = others[0].place(image.data.nbytes)
