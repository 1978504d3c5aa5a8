"""HTTP before the process of the pipeline: ``GET /health`` and streamed ``POST /v1/chat/completions``.

One request to a connection, which closes with the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from benchmarks.peers.on_openvino import process
from benchmarks.peers.on_openvino.chat import BadRequest, asked, error_event, last_events, text_event
from benchmarks.peers.on_openvino.engine import News
from benchmarks.peers.on_openvino.head import parse
from benchmarks.peers.on_openvino.options import Options

_HEAD = b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\nconnection: close\r\n\r\n"


def serve(options: Options, port: int) -> None:
    """Until SIGTERM, or until the pipeline's process ends."""
    with _pipeline(options) as connection:
        asyncio.run(_Server(Tokenizer.from_file(str(options.tokenizer)), connection).run(port))


@contextlib.contextmanager
def _pipeline(options: Options) -> Iterator[Connection]:
    """A connection to a process whose pipeline is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=process.main, args=(options, theirs))
    child.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        with contextlib.suppress(BrokenPipeError):
            ours.send(None)
        child.join()


@dataclass
class _Answer:
    """One answer on its way to the client."""

    writer: asyncio.StreamWriter
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _num_tokens: int = 0
    _text: DecodeStream = field(default_factory=lambda: DecodeStream(skip_special_tokens=True))

    def write(self, news: News, tokenizer: Tokenizer) -> None:
        self._num_tokens += len(news.tokens)
        pieces = [self._text.step(tokenizer, token) for token in news.tokens]
        if text := "".join(filter(None, pieces)):
            self.writer.write(text_event(text))
        if news.has_ended:
            events = error_event(news.error) if news.error else last_events(news.prompt_tokens, self._num_tokens)
            self.writer.write(events)
            self.ended.set()


class _Server:
    def __init__(self, tokenizer: Tokenizer, connection: Connection) -> None:
        self._tokenizer = tokenizer
        self._connection = connection
        self._answers: dict[int, _Answer] = {}
        self._numbers = itertools.count()
        self._stop = asyncio.Event()

    async def run(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_reader(self._connection.fileno(), self._receive)
        async with await asyncio.start_server(self._connected, "127.0.0.1", port):
            await self._stop.wait()

    def _receive(self) -> None:
        try:
            news: Sequence[News] = self._connection.recv()
        except EOFError:
            self._stop.set()
            return
        for each in news:
            self._answers[each.number].write(each, self._tokenizer)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection. A request goes on when its client disconnects."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            head = parse(await reader.readuntil(b"\r\n\r\n"))
            if (head.method, head.target) == ("GET", "/health"):
                writer.write(_HEAD % (200, b"OK", b"text/plain"))
            elif (head.method, head.target) == ("POST", "/v1/chat/completions"):
                await self._complete(await reader.readexactly(head.content_length), writer)
            else:
                writer.write(_HEAD % (404, b"Not Found", b"text/plain"))
            await writer.drain()

    async def _complete(self, body: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            wanted = asked(json.loads(body))
        except BadRequest as error:
            writer.write(_HEAD % (400, b"Bad Request", b"text/plain") + str(error).encode())
            return
        number, answer = next(self._numbers), _Answer(writer)
        self._answers[number] = answer
        writer.write(_HEAD % (200, b"OK", b"text/event-stream"))
        self._connection.send((number, wanted))
        await answer.ended.wait()
        del self._answers[number]
