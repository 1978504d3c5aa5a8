"""Bare uvicorn: it reads each body and answers ``{}``. Nothing is parsed, decoded, hashed or copied.

Its rate is an upper bound for every server built on uvicorn.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import uvicorn
from starlette.types import Receive, Scope, Send

from benchmarks.load.server import Target

_ANSWER = b"{}"
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ANSWER))]


@contextlib.contextmanager
def bare() -> Iterator[Target]:
    """A server in a process of its own; connections made before it runs wait in its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-m", "benchmarks.images.frontend.bare", str(listening.fileno())]
        with subprocess.Popen(command, pass_fds=[listening.fileno()]) as process:
            try:
                yield Target("uvicorn", f"http://127.0.0.1:{listening.getsockname()[1]}", "", process.pid)
            finally:
                process.terminate()


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, then answer."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _ANSWER})


def main() -> None:
    config = uvicorn.Config(answer, lifespan="off", access_log=False, log_level="warning")
    # Passed as a socket object: uvicorn assumes that a plain descriptor is a Unix socket.
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
