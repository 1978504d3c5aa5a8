"""An HTTP worker whose model repeats the question, in a process of its own: python -m tests.e2e.web.echo_server KEY.

With it a test decides what the model writes. A question that begins with ``hold`` is answered but for its last word,
which never comes. Prints its URL, and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import sys
from array import array

import uvloop

from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say, say_then_hold
from tests.fakes.http.http_worker import http_worker


async def repeat(upstream: Upstream, request: GenerateRequest) -> None:
    text = bytes(token for token in array("q", request.prompt_ids) if token < 256).decode()
    if text.startswith("hold"):
        await say_then_hold(text.rpartition(" ")[0])(upstream, request)
    else:
        await say(text, group=7)(upstream, request)


async def main(api_key: str) -> None:
    async with http_worker(api_key=api_key, enable_admin=True) as worker:
        worker.upstream.behave = repeat
        print(worker.url, flush=True)
        await worker.serving


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
