"""The rest of the server as an HTTP worker sees it: router and supervisor, on real sockets.

``behave`` replies to a request. The class ensures that each attempt gets exactly one terminal reply.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Self

import msgspec

from mmserve.ipc.links.channel import AsyncReceiver, Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.logprobs import pack
from mmserve.messages.reply import HttpInbound, SequenceStage, SequenceStages, ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, AskStages, EngineInbound, GenerateRequest

READY = ServerPhase(phase="ready", ready=True)
TIMEOUT_S = 20.0

Behaviour = Callable[["Upstream", GenerateRequest], Awaitable[None]]


def output_of(request: GenerateRequest) -> bytes:
    """The output that the request already has, as text."""
    return bytes(array("q", request.output_ids).tolist())


def likely(token_id: int, top: int) -> bytes:
    """Packed log-probabilities: the token is the likeliest, and the next ``top`` ids follow in order."""
    return pack([(token_id, -0.5), *((token_id + place, -0.5 - place) for place in range(top))])


def say(text: str, *, finish: str = "stop", group: int = 1) -> Behaviour:
    """Reply with ``text``, ``group`` bytes a reply, after the output that the request already has."""

    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        data = text.encode()[: request.sampling.max_tokens]
        end = finish if len(data) == len(text.encode()) else "length"
        start = len(output_of(request))
        for at in range(start, len(data), group):
            piece = data[at : at + group]
            last = at + group >= len(data)
            upstream.reply(request, piece, finish=end if last else None, num_cached_tokens=3)
            await asyncio.sleep(0)

    return behave


def say_then_hold(text: str, rest: str = "") -> Behaviour:
    """Reply with ``text``, then with ``rest`` once ``upstream.release`` is set."""

    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        start = len(output_of(request))
        if text.encode()[start:]:
            upstream.reply(request, text.encode()[start:])
        await upstream.release.wait()
        upstream.reply(request, rest.encode(), finish="stop")

    return behave


class Upstream:
    """``received`` has the messages in order."""

    def __init__(self, endpoints: Endpoints, http_workers: int = 1) -> None:
        self.behave: Behaviour = say("hello")
        self.received: list[EngineInbound] = []
        self.release = asyncio.Event()
        self.answer_aborts = True
        self.stage: SequenceStage | None = "prefill"
        """Of each sequence that is asked about; None: no answer."""
        self._endpoints = endpoints
        self._http_workers = http_workers
        self._changed = asyncio.Condition()
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._ended: set[tuple[str, int]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._http: list[Sender[HttpInbound]] = []
        for index in range(self._http_workers):
            self._http.append(Sender(self._endpoints.http(index), HttpInbound))
            self._stack.callback(self._http[index].close, linger_ms=100)
        receiver: AsyncReceiver[EngineInbound] = AsyncReceiver(self._endpoints.router, EngineInbound)
        task = asyncio.create_task(self._receive(receiver))
        self._stack.callback(receiver.close)
        self._stack.callback(task.cancel)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.lose_requests()
        await self._stack.aclose()

    def lose_requests(self) -> None:
        """Lose all running requests, as when the engine is killed."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()

    def say_phase(self, **fields: Any) -> None:
        for worker in self._http:
            worker.send(msgspec.structs.replace(READY, **fields))

    def reply(self, request: GenerateRequest, token_ids: Any = (), **fields: Any) -> None:
        """Send one reply, unless the attempt has had its terminal reply."""
        attempt = (request.id, request.attempt)
        if attempt in self._ended:
            return
        if fields.get("finish"):
            self._ended.add(attempt)
        ids, top = tuple(token_ids), request.sampling.logprobs
        logprobs = () if top is None else tuple(likely(id, top) for id in ids)
        reply = TokenReply(id=request.id, attempt=request.attempt, token_ids=ids, logprobs=logprobs, **fields)
        self._http[request.reply_to].send(reply)

    def requests(self) -> list[GenerateRequest]:
        return [message for message in self.received if isinstance(message, GenerateRequest)]

    def aborts(self) -> list[AbortRequest]:
        return [message for message in self.received if isinstance(message, AbortRequest)]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; checked after each received message."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(condition)

    async def _receive(self, receiver: AsyncReceiver[EngineInbound]) -> None:
        async for message in receiver:
            self.received.append(message)
            if isinstance(message, GenerateRequest):
                task = asyncio.create_task(self.behave(self, message))  # type: ignore[arg-type]
                self._running[message.id, message.attempt] = task
            elif isinstance(message, AskStages):
                if self.stage is not None:
                    stages = dict.fromkeys(message.ids, self.stage)
                    self._http[message.reply_to].send(SequenceStages(stages=stages))
            elif self.answer_aborts:
                self._abort(message)
            async with self._changed:
                self._changed.notify_all()

    def _abort(self, message: AbortRequest) -> None:
        attempt = (message.id, message.attempt)
        if task := self._running.pop(attempt, None):
            task.cancel()
        if attempt not in self._ended:
            self._ended.add(attempt)
            self._http[message.reply_to].send(TokenReply(id=message.id, attempt=message.attempt, finish="abort"))
