"""``mmserve serve`` with a stub behind its HTTP workers and cache server.

    python -m benchmarks.images.frontend.server

One stub process replaces visual servers, router and ranks. It answers every request at once, or with one token every
INTERVAL_S when the request asks for more than one token.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import signal
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from tokenizers import Tokenizer

from mmserve.cli import main as cli
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.ipc.links.channel import AsyncReceiver, Sender
from mmserve.messages.reply import HttpInbound, TokenReply
from mmserve.messages.request import AbortRequest, EngineInbound, GenerateRequest
from mmserve.monitoring.health.heartbeat import INTERVAL_S as HEARTBEAT_S
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.supervisor import run as supervisor_run
from mmserve.supervisor.topology import Topology, topology

INTERVAL_S = 0.02
_REPLACED = ("visualserver", "model_backend")


def stub_topology(deployment: Deployment) -> Topology:
    """The server's processes without visual servers and ranks; ``run`` replaces the router."""
    return [
        dataclasses.replace(role, target="benchmarks.images.frontend.server:run") if role.name == "router" else role
        for role in topology(deployment)
        if role.name not in _REPLACED
    ]


def run(process: Process) -> None:
    """Answer until SIGTERM."""
    asyncio.run(_Engine(process).serve(process))


class _Engine:
    def __init__(self, process: Process) -> None:
        tokenizer = Tokenizer.from_file(str(Path(process.deployment.model.path) / "tokenizer.json"))
        self._token: int = tokenizer.encode(" and", add_special_tokens=False).ids[-1]
        self._running: dict[str, asyncio.Task[None]] = {}

    async def serve(self, process: Process) -> None:
        config, endpoints = process.deployment.config, process.endpoints
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        with ExitStack() as stack:
            self._http = [_sender(endpoints.http(index)) for index in range(config.http_workers)]
            for sender in self._http:
                stack.callback(sender.close, linger_ms=100)
            inbox: AsyncReceiver[EngineInbound] = AsyncReceiver(endpoints.router, EngineInbound)
            stack.callback(inbox.close)
            reading = asyncio.create_task(self._read(inbox))
            stack.callback(reading.cancel)
            beating = asyncio.create_task(_beat(process))
            stack.callback(beating.cancel)
            process.ready({"kv_tokens": process.deployment.kv_tokens or 1})
            await ended.wait()

    async def _read(self, inbox: AsyncReceiver[EngineInbound]) -> None:
        async for message in inbox:
            match message:
                case GenerateRequest(sampling=sampling) if sampling.max_tokens == 1:
                    self._reply(message, "length")
                case GenerateRequest():
                    self._running[message.id] = asyncio.create_task(self._stream(message))
                case AbortRequest():
                    if task := self._running.pop(message.id, None):
                        task.cancel()
                    self._http[message.reply_to].send(
                        TokenReply(id=message.id, attempt=message.attempt, finish="abort")
                    )

    async def _stream(self, request: GenerateRequest) -> None:
        for _ in range(request.sampling.max_tokens - 1):
            self._reply(request, None)
            await asyncio.sleep(INTERVAL_S)
        self._reply(request, "length")
        del self._running[request.id]

    def _reply(self, request: GenerateRequest, finish: str | None) -> None:
        reply = TokenReply(id=request.id, attempt=request.attempt, token_ids=(self._token,), finish=finish)  # type: ignore[arg-type]
        self._http[request.reply_to].send(reply)


async def _beat(process: Process) -> None:
    """Without heartbeats the supervisor would restart this process."""
    heartbeat = HeartbeatSender(process.endpoints, process.name)
    with closing(heartbeat):
        while True:
            heartbeat.beat(busy=False)
            await asyncio.sleep(HEARTBEAT_S)


def _sender(endpoint: str) -> Sender[HttpInbound]:
    return Sender(endpoint, HttpInbound)


def main() -> int:
    supervisor_run.serve = functools.partial(supervisor_run.serve, roles=stub_topology)
    return cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
