"""Memory of an HTTP worker while clients abort requests with large images: is it flat?

Starts ``mmserve serve``, sends --requests requests of --mib MiB each, and closes every connection early. One third of
the connections is closed within the body, one third after it, one third after the first event of the answer. Prints the
worker's resident memory (RSS) before the requests, between them and after them. --warm-up requests are sent before the
first figure, since a new worker's heap grows to its working size. Each figure is taken after a pause, in which the
worker returns what its heap has free. --url and --pid measure a running server instead; --pid is the server's first
process.

    python -m benchmarks.memory.aborted_requests
    python -m benchmarks.memory.aborted_requests --requests 200 --json aborted.json
    python -m benchmarks.memory.aborted_requests --url http://127.0.0.1:8000 --pid 1234
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import itertools
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image

from benchmarks.load import report
from benchmarks.load.memory import MIB, title, tree
from benchmarks.load.server import Target, serve

ALLOWED_CHANGE = 0.05
SERVE_ARGS = "--mm-cache-gb 0.125 --kv-cache-gb 0.25"
_STAGES = ("within the body", "after the body", "while streaming")
_LINES = 8
_SETTLE_S = 3.0
_TIMEOUT_S = 60.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=200, help="requests before the first figure")
    parser.add_argument("--mib", type=float, default=5.0, help="size of a request's body")
    parser.add_argument("--clients", type=int, default=8, help="requests at the same time")
    parser.add_argument("--serve-args", default=SERVE_ARGS, help=f"flags of the server; default: {SERVE_ARGS}")
    parser.add_argument("--url", help="of a running server, in place of one started here")
    parser.add_argument("--pid", type=int, help="root of the running server's process tree")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def main() -> None:
    """Start, abort, print."""
    options = arguments()
    with _target(options) as target:
        assert target.pid is not None, "--url needs --pid"
        worker = http_worker(target.pid)
        bodies = Bodies(options.mib)
        asyncio.run(abort_all(target.url, bodies, options.warm_up, options.clients))
        rows = [_row(worker, 0)]
        for sent in _steps(options.requests):
            asyncio.run(abort_all(target.url, bodies, sent - int(str(rows[-1]["requests"])), options.clients))
            rows.append(_row(worker, sent))
            print(f"{sent} of {options.requests} requests aborted", flush=True)
    changes = {kind: float(str(rows[-1][kind])) / float(str(rows[0][kind])) - 1 for kind in ("rss_mib", "private_mib")}
    limits = [
        report.at_most(f"change of {kind}", f"{options.requests} aborted", abs(change), ALLOWED_CHANGE)
        for kind, change in changes.items()
    ]
    print(f"\n{report.machine()}; bodies of {options.mib:g} MiB, {options.clients} at a time")
    for table in (rows, limits):
        print(f"\n{report.table(table)}")
    report.write_json(options.json, [*rows, *limits])


@contextlib.contextmanager
def _target(options: argparse.Namespace) -> Iterator[Target]:
    if options.url:
        yield Target("mmserve", options.url.rstrip("/"), "", options.pid)
        return
    with serve(*options.serve_args.split()) as target:
        yield target


def http_worker(pid: int) -> int:
    """The first HTTP worker below a server's first process."""
    return next(each for each in tree(pid) if title(each).startswith("httpserver"))


def resident(pid: int) -> dict[str, float]:
    """MiB by kind: all resident pages, those of no file and no shared memory, and of these the pages of the heap."""
    status = Path(f"/proc/{pid}/status").read_text()
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text(), flags=re.MULTILINE)
    heap = "".join(each for each in maps if "[heap]" in each)
    return {
        "rss_mib": _mib(status, "VmRSS"),
        "private_mib": _mib(status, "RssAnon"),
        "heap_mib": _mib(heap, "Anonymous"),
    }


def _mib(fields: str, name: str) -> float:
    found = re.search(rf"^{name}:\s+(\d+) kB", fields, re.MULTILINE)
    assert found, f"the kernel does not report {name}"
    return int(found[1]) * 1024 / MIB


def _row(worker: int, sent: int) -> report.Row:
    """After a pause in which the worker ends what was aborted."""
    time.sleep(_SETTLE_S)
    return {"requests": sent, **resident(worker)}


def _steps(count: int) -> list[int]:
    return sorted({max(1, count * line // _LINES) for line in range(1, _LINES + 1)})


class Bodies:
    """Chat bodies with one small JPEG each, padded to a size behind its end, where decoders ignore it. All differ."""

    def __init__(self, mib: float) -> None:
        picture = io.BytesIO()
        Image.effect_noise((64, 64), 80).convert("RGB").save(picture, "JPEG")
        jpeg = picture.getvalue()
        self._image = base64.b64encode(jpeg + bytes(-len(jpeg) % 3))
        self._padding = b"A" * max(0, int(mib * MIB) - len(self._image))
        self._numbers = itertools.count(random.getrandbits(32))
        content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "@"}}]
        request = {
            "model": "llava",
            "messages": [{"role": "user", "content": content}],
            "stream": True,
            "ignore_eos": True,
        }
        head, _, self._tail = json.dumps(request | {"cache_salt": "benchmark"}).encode().partition(b"@")
        self._head = head + b"data:image/jpeg;base64,"

    def next(self) -> bytes:
        number = base64.b64encode(next(self._numbers).to_bytes(6, "big"))
        return b"".join((self._head, self._image, self._padding, number, self._tail))


async def abort_all(url: str, bodies: Bodies, count: int, clients: int) -> None:
    """Send ``count`` requests and abort each, ``clients`` at a time."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            async with asyncio.timeout(_TIMEOUT_S):
                await _abort(url, bodies.next(), _STAGES[number % len(_STAGES)])

    await asyncio.gather(*(client() for _ in range(clients)))


async def _abort(url: str, body: bytes, stage: str) -> None:
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        writer.write(body[: len(body) // 2] if stage == "within the body" else body)
        await writer.drain()
        if stage == "while streaming":
            await reader.readuntil(b"data: ")
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        print(f"  {stage}: {error!r}")
    finally:
        writer.transport.abort()


if __name__ == "__main__":
    main()
