"""An OpenAI-compatible server that is not mmserve: records requests, answers each with ``max_tokens`` words at once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

MODEL = "someone/else"
TOKENS_PER_WORD = 4
TEMPLATE_TOKENS = 10


class OpenAiServer(ThreadingHTTPServer):
    """``bodies`` are those of all chat requests in order of arrival, refused ones included. ``stages_ms``: its answer
    to ``include_timing``; nothing by default, as servers do that ignore the field."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self, *, takes_pictures: bool, knows_timing: bool, stages_ms: Mapping[str, float]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.takes_pictures = takes_pictures
        self.knows_timing = knows_timing
        self.stages_ms = stages_ms
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: OpenAiServer

    def do_GET(self) -> None:
        self._answer(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if pictures_of(body) and not self.server.takes_pictures:
            self._answer(400, {"error": {"message": "no pictures here"}})
            return
        timed = (body.get("stream_options") or {}).get("include_timing")
        if timed and not self.server.knows_timing:
            self._answer(400, {"error": {"message": "stream_options.include_timing is no field"}})
            return
        self.send_response(200)
        self.end_headers()
        for _ in range(body["max_tokens"]):
            self._event({"choices": [{"delta": {"content": "word "}}]})
        prompt_tokens = TOKENS_PER_WORD * len(text_of(body).split()) + TEMPLATE_TOKENS
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": body["max_tokens"]}
        timing = {"timing": {"stages_ms": self.server.stages_ms}} if timed and self.server.stages_ms else {}
        self._event({"choices": [], "usage": usage, **timing})
        self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


def pictures_of(body: dict[str, Any]) -> list[str]:
    """URLs of the images in the first message."""
    return [part["image_url"]["url"] for part in body["messages"][0]["content"] if part["type"] == "image_url"]


def text_of(body: dict[str, Any]) -> str:
    return " ".join(part["text"] for part in body["messages"][0]["content"] if part["type"] == "text")


@contextlib.contextmanager
def openai_server(
    *, takes_pictures: bool = True, knows_timing: bool = True, stages_ms: Mapping[str, float] = MappingProxyType({})
) -> Iterator[OpenAiServer]:
    """A server that runs until the context ends."""
    with OpenAiServer(takes_pictures=takes_pictures, knows_timing=knows_timing, stages_ms=stages_ms) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
