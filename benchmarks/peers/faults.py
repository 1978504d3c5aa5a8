"""What any OpenAI-compatible server does when one of its processes is killed or stopped while streams run.

    python -m benchmarks.peers.faults --url http://127.0.0.1:8001 --model NAME --process EngineCore --signal STOP

Starts --streams streams of --tokens tokens, waits until each has its first token and --after seconds more, sends the
signal to the processes whose title or command line contains --process, and continues stopped ones after --stopped
seconds. Prints how the streams ended, the longest pause in one, and whether the server answers a new request then. The
server runs already; mmserve's own drill is ``python -m benchmarks.chaos``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import psutil

_PROMPT = "Write a long story about a lighthouse keeper, number {}."
_HEALTHY_AFTER_S = 120.0


@dataclass
class Stream:
    """One streamed answer. ``end``: complete, error, cut (the connection closed early) or silent (nothing came)."""

    started: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first token, or when the stream has ended."""
    tokens: int = 0
    longest_pause_s: float = 0.0
    end: str = "silent"


def main(argv: Sequence[str] | None = None) -> int:
    asyncio.run(_experiment(_parser().parse_args(argv)))
    return 0


async def _experiment(arguments: argparse.Namespace) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=arguments.patience)
    async with aiohttp.ClientSession(
        arguments.url, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        streams = [Stream() for _ in range(arguments.streams)]
        tasks = [
            asyncio.create_task(_read(session, arguments, number, stream)) for number, stream in enumerate(streams)
        ]
        await asyncio.gather(*(stream.started.wait() for stream in streams))
        await asyncio.sleep(arguments.after)
        victims = _processes(arguments.process)
        print(f"{arguments.signal} to {', '.join(f'{one.pid} {one.name()}' for one in victims)}", flush=True)
        before = [stream.tokens for stream in streams]
        for victim in victims:
            victim.send_signal(signal.Signals[f"SIG{arguments.signal}"])
        if arguments.signal == "STOP":
            await asyncio.sleep(arguments.stopped)
            for victim in victims:
                if victim.is_running():
                    victim.send_signal(signal.SIGCONT)
        await asyncio.gather(*tasks)
        _report(streams, before)
        print(f"a new request: {await _new_request(session, arguments)}")


async def _read(session: aiohttp.ClientSession, arguments: argparse.Namespace, number: int, stream: Stream) -> None:
    body = _body(arguments, _PROMPT.format(number), arguments.tokens) | {"stream": True, "ignore_eos": True}
    last_s = time.monotonic()
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                stream.end = f"status {response.status}"
                return
            stream.end = "cut"
            async for line in response.content:
                if not line.startswith(b"data:"):
                    continue
                stream.longest_pause_s = max(stream.longest_pause_s, time.monotonic() - last_s)
                last_s = time.monotonic()
                stream.end = _end(line[5:].strip(), stream)
    except TimeoutError:
        stream.end = "silent"
    except aiohttp.ClientError:
        stream.end = "cut"
    finally:
        stream.started.set()


def _end(data: bytes, stream: Stream) -> str:
    """How the stream would have ended if this were its last event."""
    if data == b"[DONE]":
        return stream.end
    event = json.loads(data)
    if "error" in event:
        return "error"
    for choice in event.get("choices") or ():
        if (choice.get("delta") or {}).get("content"):
            stream.tokens += 1
            stream.started.set()
        if choice.get("finish_reason"):
            return "complete"
    return stream.end


def _report(streams: Sequence[Stream], before: Sequence[int]) -> None:
    ends = Counter(stream.end for stream in streams)
    print(", ".join(f"{count} streams: {end}" for end, count in ends.most_common()))
    print(f"tokens of a stream before the signal {min(before)}-{max(before)}, in all", end=" ")
    print(f"{min(stream.tokens for stream in streams)}-{max(stream.tokens for stream in streams)}")
    print(f"longest pause in a stream {max(stream.longest_pause_s for stream in streams):.1f} s")


async def _new_request(session: aiohttp.ClientSession, arguments: argparse.Namespace) -> str:
    started_s = time.monotonic()
    outcome = "none"
    while time.monotonic() - started_s < _HEALTHY_AFTER_S:
        try:
            async with session.post("/v1/chat/completions", json=_body(arguments, "Hello", 4)) as response:
                outcome = f"status {response.status}"
                if response.status == 200:
                    return f"answered after {time.monotonic() - started_s:.1f} s"
        except (TimeoutError, aiohttp.ClientError) as error:
            outcome = type(error).__name__
        await asyncio.sleep(1)
    return f"not answered within {_HEALTHY_AFTER_S:g} s ({outcome})"


def _body(arguments: argparse.Namespace, text: str, max_tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": arguments.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0}


def _processes(pattern: str) -> list[psutil.Process]:
    found = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if pattern in (line := " ".join([process.info["name"] or "", *(process.info["cmdline"] or ())]))
        and "--process" not in line  # this program, and the shell that runs it
    ]
    if not found:
        raise SystemExit(f"no process has {pattern!r} in its title or command line")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--process", required=True, help="part of the title or command line of the processes to hit")
    parser.add_argument("--signal", choices=("KILL", "STOP"), default="KILL")
    parser.add_argument("--stopped", type=float, default=40.0, help="seconds until a stopped process goes on")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--after", type=float, default=5.0, help="seconds of streaming before the signal")
    parser.add_argument("--patience", type=float, default=300.0, help="seconds without a byte until a stream is silent")
    return parser


if __name__ == "__main__":
    sys.exit(main())
