"""uvicorn and httptools still have every part that mmserve/httpserver/http/ overrides, reads or sets.

Those parts are not a public interface. When a new version has moved one, this test names it and the file that uses it.
"""

from __future__ import annotations

import asyncio
import re
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

ROOT = Path(__file__).parents[4]
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nab"


class Part(NamedTuple):
    """``name`` of ``owner`` (a key of ``owners()``); ``file`` in mmserve/httpserver/http/ uses it to ``purpose``."""

    owner: str
    name: str
    file: str
    purpose: str


PARTS = (
    Part("uvicorn.Server", "serve", "uvicorn_server.py", "serve on the inherited socket"),
    Part("uvicorn.Server", "startup", "uvicorn_server.py", "report that connections are accepted"),
    Part("uvicorn.Server", "capture_signals", "uvicorn_server.py", "leave SIGTERM to the worker"),
    Part("uvicorn.Server", "main_loop", "uvicorn_server.py", "wake up once a second and when stopped"),
    Part("uvicorn.Server", "on_tick", "uvicorn_server.py", "renew the Date header"),
    Part("uvicorn.Server", "should_exit", "uvicorn_server.py", "stop"),
    Part("uvicorn.Server", "config", "uvicorn_server.py", "set the time that connections get at the end"),
    Part("uvicorn.Config", "timeout_graceful_shutdown", "uvicorn_server.py", "set the time that connections get"),
    Part("HttpToolsProtocol", "connection_made", "protocol.py", "read the connection in small steps"),
    Part("HttpToolsProtocol", "connection_lost", "protocol.py", "pass the event on while a body is received"),
    Part("HttpToolsProtocol", "eof_received", "protocol.py", "pass the event on while a body is received"),
    Part("HttpToolsProtocol", "pause_writing", "protocol.py", "pass the event on while a body is received"),
    Part("HttpToolsProtocol", "resume_writing", "protocol.py", "pass the event on while a body is received"),
    Part("HttpToolsProtocol", "data_received", "protocol.py", "limit the size of a request's head"),
    Part("HttpToolsProtocol", "on_message_begin", "protocol.py", "start counting a request's head"),
    Part("HttpToolsProtocol", "on_headers_complete", "protocol.py", "add the ASGI extensions to the scope"),
    Part("HttpToolsProtocol", "on_body", "protocol.py", "limit what is read of a refused body"),
    Part("HttpToolsProtocol", "on_message_complete", "protocol.py", "end a body that it received itself"),
    Part("HttpToolsProtocol", "on_response_complete", "protocol.py", "start the time until the next request"),
    Part("HttpToolsProtocol", "_unset_keepalive_if_required", "protocol.py", "replace the keep-alive timer"),
    Part("HttpToolsProtocol", "shutdown", "protocol.py", "limit the time for an unread answer at the end"),
    Part("HttpToolsProtocol", "send_400_response", "protocol.py", "answer 431 to too many headers"),
    Part("HttpToolsProtocol", "on_url", "parser.py", "be told of a request's URL"),
    Part("HttpToolsProtocol", "on_header", "parser.py", "be told of a request's headers"),
    Part("HttpToolsProtocol", "parser", "protocol.py", "replace the parser"),
    Part("HttpToolsProtocol", "headers", "parser.py", "know how a body is framed"),
    Part("HttpToolsProtocol", "scope", "protocol.py", "add the ASGI extensions to the scope"),
    Part("HttpToolsProtocol", "transport", "protocol.py", "close the connection or hand it to the body receiver"),
    Part("HttpToolsProtocol", "flow", "protocol.py", "resume reading before a body is received"),
    Part("HttpToolsProtocol", "pipeline", "protocol.py", "know whose the current cycle is"),
    Part("HttpToolsProtocol", "loop", "protocol.py", "tell of a lost connection"),
    Part("HttpToolsProtocol", "cycle", "protocol.py", "reach the current request"),
    Part("RequestResponseCycle", "body", "protocol.py", "take the part of a body that has arrived already"),
    Part("RequestResponseCycle", "more_body", "protocol.py", "know that a body has arrived"),
    Part("RequestResponseCycle", "transport", "protocol.py", "send the head of a response with its body"),
    Part("RequestResponseCycle", "response_complete", "protocol.py", "know that the request is answered"),
    Part("RequestResponseCycle", "keep_alive", "protocol.py", "close the connection after the response"),
    Part("FlowControl", "resume_reading", "protocol.py", "resume reading before a body is received"),
    Part("httptools.HttpRequestParser", "feed_data", "parser.py", "parse what arrives"),
    Part("httptools.HttpRequestParser", "should_upgrade", "protocol.py", "recognise an offer of another protocol"),
    Part("httptools.HttpRequestParser", "set_dangerous_leniencies", "parser.py", "accept data after 'close'"),
    Part("httptools", "HttpParserError", "parser.py", "refuse malformed data"),
    Part("httptools", "HttpParserUpgrade", "parser.py", "decline an offer of another protocol"),
)


def test_no_private_part_of_uvicorn_or_httptools_has_moved() -> None:
    found = asyncio.run(_owners())
    moved = [
        f"{part.owner} has no {part.name!r} in uvicorn {version('uvicorn')} with httptools {version('httptools')}; "
        f"mmserve/httpserver/http/{part.file} needs it to {part.purpose}."
        for part in PARTS
        if not hasattr(found[part.owner], part.name)
    ]
    installed, pinned = version("uvicorn"), _pin()
    if not installed.startswith(f"{pinned}."):
        moved.append(f"uvicorn {installed} is installed; pyproject.toml and mmserve/httpserver/http/ mean {pinned}.")
    assert not moved, "\n".join(moved)


async def _owners() -> dict[str, Any]:
    """The objects that have the parts: of a connection on which half a request has arrived."""
    config = uvicorn.Config(_never_ending, http=HttpToolsProtocol, ws="none", lifespan="off", log_config=None)
    protocol = HttpToolsProtocol(config, ServerState(), {})
    protocol.connection_made(_Transport())
    protocol.data_received(REQUEST)
    found = {
        "uvicorn.Server": uvicorn.Server(config),
        "uvicorn.Config": config,
        "HttpToolsProtocol": protocol,
        "RequestResponseCycle": protocol.cycle,
        "FlowControl": protocol.flow,
        "httptools.HttpRequestParser": protocol.parser,
        "httptools": httptools,
    }
    for task in protocol.tasks:
        task.cancel()
    return found


class _Transport(asyncio.Transport):
    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


async def _never_ending(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def _pin() -> str:
    """The minor version that pyproject.toml allows, e.g. "0.54"."""
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (pin,) = [one for one in requirements if one.startswith("uvicorn")]
    matched = re.fullmatch(r"uvicorn>=(\d+)\.(\d+),<(\d+)\.(\d+)", pin)
    assert matched is not None, f"{pin!r} is not one minor version"
    major, minor, *end = map(int, matched.groups())
    assert end == [major, minor + 1], f"{pin!r} is not one minor version"
    return f"{major}.{minor}"
