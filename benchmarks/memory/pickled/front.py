"""The baseline: an HTTP process that decodes images, makes fp32 pixels and pickles them to an engine process.

This is how LMDeploy worked before its PR #4725: one event loop, one thread for preprocessing, and body, messages and
pixels kept until the request's last token. For comparison only.

    python -m benchmarks.memory.pickled.front --service-ms 400
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import pickle
import socket
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import setproctitle
import uvicorn
import zmq
import zmq.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.memory.pickled import engine
from benchmarks.memory.pickled.messages import Accepted, Submitted, Token
from benchmarks.memory.pickled.pixels import KINDS, decoded

_CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
_DONE = b"data: [DONE]\n\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="baseline", help="ignored")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--gate", type=int, default=0, help="requests between decoding and acceptance; 0: no limit")
    parser.add_argument("--drop", action="store_true", help="let go of everything at the hand-over to the engine")
    parser.add_argument("--service-ms", type=float, default=0.0, help="encoding one picture takes so long")
    parser.add_argument("--busy-accept", action="store_true", help="the engine accepts only between two steps")
    parser.add_argument("--pixels", choices=sorted(KINDS), default="native")
    return parser.parse_args()


class Frontend:
    """Requests of one event loop. A gate limits decoding and is released on acceptance, as in LMDeploy's PR #4687."""

    def __init__(self, options: argparse.Namespace, outbox: zmq.asyncio.Socket, inbox: zmq.asyncio.Socket) -> None:
        self._pixels_of = KINDS[options.pixels]
        self._drop = options.drop
        self._gate = asyncio.Semaphore(options.gate) if options.gate else contextlib.nullcontext()
        self._outbox, self._inbox = outbox, inbox
        self._preprocessing = ThreadPoolExecutor(1, "preprocess")
        self._numbers = itertools.count()
        self._accepted: dict[int, asyncio.Event] = {}
        self._tokens: dict[int, asyncio.Queue[Token]] = {}

    async def chat(self, request: Request) -> StreamingResponse:
        body = await request.body()
        call = json.loads(body)
        events = self._generate(call, body)
        del call, body
        if self._drop:
            del request._body  # starlette's copy; the caller keeps the request itself to the end
        return StreamingResponse(events, media_type="text/event-stream")

    async def _generate(self, call: dict[str, Any], body: bytes) -> AsyncIterator[bytes]:
        number, max_tokens = next(self._numbers), call["max_tokens"]
        self._tokens[number] = asyncio.Queue()
        self._accepted[number] = asyncio.Event()
        try:
            if (url := _image_url(call)) is None:
                await self._submit(Submitted(number, max_tokens, None))
            else:
                async with self._gate:
                    kept = Submitted(number, max_tokens, await self._pixels(url))
                    await self._submit(kept)
                    if self._drop:
                        del kept, url, call, body
                    await self._accepted[number].wait()
            while not (await self._tokens[number].get()).last:
                yield _CHUNK
            yield _CHUNK + _DONE
        finally:
            del self._tokens[number], self._accepted[number]

    async def _pixels(self, url: str) -> Any:
        loop = asyncio.get_running_loop()
        image = await asyncio.to_thread(decoded, url)
        return await loop.run_in_executor(self._preprocessing, self._pixels_of, image)

    async def _submit(self, message: Submitted) -> None:
        """Pickles on the event loop, as the servers that this baseline models did."""
        await self._outbox.send(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    async def receive_messages(self) -> None:
        """Pass the engine's messages to their requests. Messages of ended requests are dropped."""
        while True:
            message = pickle.loads(await self._inbox.recv())  # noqa: S301  # the baseline's own engine wrote it
            if isinstance(message, Accepted):
                if (event := self._accepted.get(message.id)) is not None:
                    event.set()
            elif (tokens := self._tokens.get(message.id)) is not None:
                tokens.put_nowait(message)


def _image_url(call: dict[str, Any]) -> str | None:
    parts = [part for message in call["messages"] for part in message["content"] if isinstance(part, dict)]
    return next((part["image_url"]["url"] for part in parts if part["type"] == "image_url"), None)


async def serve(options: argparse.Namespace, to_engine: str, to_front: str) -> None:
    """Serve until SIGTERM. Prints the address as ``mmserve serve`` does."""
    context = zmq.asyncio.Context()
    outbox, inbox = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    inbox.bind(to_front)
    outbox.connect(to_engine)
    front = Frontend(options, outbox, inbox)
    app = Starlette(routes=[Route("/v1/chat/completions", front.chat, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", options.port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    receiving = asyncio.create_task(front.receive_messages())
    print(f"ready: http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    await server.serve(sockets=[listening])
    receiving.cancel()
    context.destroy(linger=0)


def main() -> None:
    options = arguments()
    setproctitle.setproctitle("baseline: front")
    with tempfile.TemporaryDirectory() as directory:
        to_engine, to_front = f"ipc://{directory}/engine", f"ipc://{directory}/front"
        process = multiprocessing.get_context("spawn").Process(
            target=engine.main, args=(to_engine, to_front, options.service_ms / 1e3, options.busy_accept), daemon=True
        )
        process.start()
        try:
            asyncio.run(serve(options, to_engine, to_front))
        finally:
            process.kill()


if __name__ == "__main__":
    main()
