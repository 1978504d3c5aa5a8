"""Which requests are ended when their time for a permit is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from mmserve.messages.cache import PermitRequest, PermitsReply
from mmserve.messages.request import AbortRequest
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.queue.permit_stage import PermitStage
from mmserve.visualserver.queue.permits import PermitClient
from tests.unit.visualserver.queue.test_batch_queue import _request


class _NoTimeLeft:
    """A cache server that grants nothing, or promises the first. ``meanwhile``: what happens while it is asked."""

    timeout_s = 0.0

    def __init__(self, meanwhile: Callable[[], None], *, promises: bool) -> None:
        self._meanwhile, self._promises = meanwhile, promises

    def remaining_s(self, received_s: float) -> float:
        return 0.0

    async def acquire(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        self._meanwhile()
        return PermitsReply(promised=requests[0].name if self._promises else "")


@pytest.mark.parametrize("promises", [False, True])
@pytest.mark.parametrize("away", [1, 2])
def test_a_request_whose_images_are_all_at_another_machine_is_not_ended(away: int, promises: bool) -> None:
    async def test() -> None:
        queue, refused, changed = BatchQueue(4), list[AbortRequest](), asyncio.Event()

        def take() -> None:
            for waiting in queue.waiting_images(away):
                queue.take(waiting)

        permits = cast(PermitClient, cast(Any, _NoTimeLeft(take, promises=promises)))
        stage = PermitStage(queue, permits, lambda abort, _: refused.append(abort), lambda _: False, changed.set)
        queue.add(_request("a", 1, 2), 0.0)
        task = asyncio.create_task(stage.run())
        await changed.wait()
        await asyncio.sleep(0.01)  # the timer of a promise
        task.cancel()
        assert [each.id for each in refused] == ([] if away == 2 else ["a"])

    asyncio.run(test())
