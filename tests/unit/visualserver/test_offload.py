"""Pictures that an encoder gives back: the cache server's lease of each ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.visualserver.images import Image
from mmserve.visualserver.offload import Offload
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.remote.choice import Candidate, Pace
from mmserve.visualserver.remote.encoder_link import EncoderLink, NotEncoded, Place
from mmserve.visualserver.remote.encoders import Encoders
from tests.unit.visualserver.queue.test_batch_queue import _request


class Cache:
    """Records what is reported."""

    def __init__(self) -> None:
        self.reported: list[tuple[list[int], list[bool]]] = []

    def get_items_embed(self, item_ids: Sequence[int]) -> tuple[str, ...]:
        return ("pending",) * len(item_ids)

    def set_items_embed(self, item_ids: list[int], ok: list[bool]) -> tuple[str, ...]:
        self.reported.append((item_ids, ok))
        return ("gone",) * len(item_ids)


class Link:
    """To an encoder that has no rows, once ``gives_back`` is set."""

    name = "encoder"
    num_places = unanswered_nbytes = 0

    def __init__(self) -> None:
        self.gives_back = asyncio.Event()

    def has_room(self, nbytes: int) -> bool:
        return True

    def candidate(self) -> Candidate:
        return Candidate(self.name, 0, Pace(image_s=0.1))

    def place(self, nbytes: int) -> Place:
        return Place(cast(EncoderLink, self), nbytes)

    async def encode(self, image: Image) -> None:
        await self.gives_back.wait()
        raise NotEncoded("damaged")


class OneEncoder:
    def __init__(self, link: Link) -> None:
        self.links = [link]
        self.on_change: Any = None

    def close(self) -> None:
        pass


@pytest.mark.parametrize("dropped_before", [True, False])
def test_the_lease_ends_of_a_picture_that_comes_back_and_is_needed_no_more(dropped_before: bool) -> None:
    async def play() -> None:
        queue, cache, link = BatchQueue(4), Cache(), Link()
        offload = Offload(queue, cast(Encoders, OneEncoder(link)), cast(MediaCacheClient, cache))
        came_back = asyncio.Event()

        def on_change() -> None:
            came_back.set()
            offload.start()

        offload.on_change = on_change
        with closing(offload):
            offload.encoded_here(1, 10.0)
            queue.add(_request("a", 1), 0.0)
            offload.start()
            assert queue.num_in_flight == 1
            if dropped_before:
                queue.drop("a")
            link.gives_back.set()
            await asyncio.wait_for(came_back.wait(), 30)
            if not dropped_before:
                assert queue.item_ids == {1}
                queue.drop("a")
                offload.start()
            offload._calls.shutdown(wait=True)
        assert cache.reported == [([1], [False])]

    asyncio.run(play())
