"""Responses that this worker makes in the background, and what HTTP workers tell each other about theirs.

The store alone says what has become of a response. The messages only say when it is worth a look, so that nobody polls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mmserve.httpserver.response_store.runner_lock import worker_of
from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import FollowResponse, HttpInbound, ResponseChanged, StopResponse

_LOOK_AGAIN_S = 1.0
"""A follower looks at the store after this long without a word: the response's worker may have died."""
_KEPT_ENDS = 1000
_CLEANUP_TIMEOUT_S = 5.0


class _Run:
    """``seen``: what of the response is stored, as a number that grows. ``followers``: workers that wait for more."""

    def __init__(self, work: asyncio.Task[None], abort: Callable[[], None]) -> None:
        self.work = work
        self.abort = abort
        self.seen = 0
        self.followers: set[int] = set()


class BackgroundRuns:
    """Owns the tasks that store what is generated. Used from one event loop."""

    def __init__(self, endpoints: Endpoints, worker: int) -> None:
        self.worker = worker
        self._endpoints = endpoints
        self._runs: dict[str, _Run] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Ids of responses that have ended lately."""
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._num_following = 0
        self._peers: dict[int, Sender[HttpInbound]] = {}

    def start(self, id: str, work: Coroutine[Any, Any, None], abort: Callable[[], None]) -> None:
        """Run ``work``, which ends soon after ``abort`` was called."""
        task = asyncio.create_task(work, name=f"background {id}")
        self._runs[id] = _Run(task, abort)
        task.add_done_callback(lambda _: self._on_end(id))

    def stored(self, id: str, seen: int) -> None:
        """More of a response is stored: tell those who wait for it."""
        run = self._runs[id]
        run.seen, followers, run.followers = seen, run.followers, set()
        for worker in followers:
            self._send(worker, ResponseChanged(id=id))

    def stop(self, id: str, runner: str) -> None:
        """Tell the worker that makes a response that nobody wants it any more."""
        self._send(worker_of(runner), StopResponse(id=id))
        self._drop_peers()

    def handle(self, message: FollowResponse | ResponseChanged | StopResponse) -> None:
        """Handle a message of a worker; it may be about a response that has ended."""
        match message:
            case FollowResponse(id=id, seen=seen, worker=worker):
                run = self._runs.get(id)
                if run is not None and run.seen <= seen:
                    run.followers.add(worker)
                elif run is not None or id in self._ended:
                    self._send(worker, ResponseChanged(id=id))
                    self._drop_peers()
            case ResponseChanged(id=id):
                for waiting in self._waiting.pop(id, ()):
                    if not waiting.done():
                        waiting.set_result(None)
            case StopResponse(id=id):
                if id in self._runs:
                    self._runs[id].abort()

    @contextmanager
    def following(self) -> Iterator[None]:
        """A context in which ``changed`` may be called."""
        self._num_following += 1
        try:
            yield
        finally:
            self._num_following -= 1
            self._drop_peers()

    async def changed(self, id: str, runner: str, seen: int) -> None:
        """Wait until more than ``seen`` of a response is stored, or until it is time to look again."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(id, set()).add(waiting)
        self._send(worker_of(runner), FollowResponse(id=id, seen=seen, worker=self.worker))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await waiting
        finally:
            if others := self._waiting.get(id):
                others.discard(waiting)
            if not others:
                self._waiting.pop(id, None)

    async def idle(self) -> None:
        """Wait until no response is made in the background."""
        while self._runs:
            await asyncio.wait([run.work for run in self._runs.values()])

    async def end(self) -> None:
        """Wait until the responses whose requests were cancelled are stored."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLEANUP_TIMEOUT_S):
                await self.idle()

    def close(self) -> None:
        self._num_following = 0
        self._drop_peers()

    def _on_end(self, id: str) -> None:
        run = self._runs.pop(id)
        run.work.result()
        self._ended[id] = None
        if len(self._ended) > _KEPT_ENDS:
            self._ended.popitem(last=False)
        for worker in run.followers:
            self._send(worker, ResponseChanged(id=id))
        self._drop_peers()

    def _send(self, worker: int, message: HttpInbound) -> None:
        if worker not in self._peers:
            self._peers[worker] = Sender(self._endpoints.http(worker), HttpInbound)
        self._peers[worker].send(message)

    def _drop_peers(self) -> None:
        """A socket without a peer would go on to connect, so there are none while nobody needs them."""
        if not self._runs and not self._num_following:
            for peer in self._peers.values():
                peer.close(linger_ms=200)
            self._peers.clear()
