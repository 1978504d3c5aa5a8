"""A front before two real servers, one of which is killed in mid-stream: every text is what it would have been."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import signal
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import openai
import psutil
import pytest

from mmserve.client.server_process import server_process
from tests.e2e.stack import Stack, running
from tests.e2e.test_lifecycle import PROMPT
from tests.fakes.cache import until
from tests.fakes.media import png
from tests.fakes.ports import free_port

_READY = re.compile(r"ready: (http://[^\s,]+)")
_LONG = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
Ask = Callable[[openai.AsyncOpenAI, Callable[[], None]], Awaitable[str]]


@contextlib.contextmanager
def _front(secret: Path, replicas: Sequence[Stack], reports: Sequence[str]) -> Iterator[Stack]:
    addresses = [f"{replica.url},{endpoint}" for replica, endpoint in zip(replicas, reports, strict=True)]
    options = [each for address in addresses for each in ("--replica", address)]
    command = [sys.executable, "-m", "mmserve", "front", "--port", "0", "--front-secret-file", str(secret), *options]
    with server_process(command, _READY, on_line=lambda line: None, start_timeout_s=60, stop_timeout_s=30) as server:
        yield Stack(server.url, server.pid)


def _chat(**fields: object) -> Ask:
    async def ask(client: openai.AsyncOpenAI, on_text: Callable[[], None]) -> str:
        texts: dict[int, str] = {}
        sent = {"messages": PROMPT, **_LONG, **fields}
        async for event in await client.chat.completions.create(model="llava", stream=True, **sent):  # type: ignore[call-overload]
            for choice in event.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                if choice.delta.content:
                    on_text()
        return repr(texts)

    return ask


async def _completion(client: openai.AsyncOpenAI, on_text: Callable[[], None]) -> str:
    texts = []
    stream = await client.completions.create(model="llava", prompt="One", stream=True, temperature=0.8, seed=3, **_LONG)
    async for event in stream:
        texts.append("".join(choice.text for choice in event.choices))
        on_text()
    return "".join(texts)


def _requests() -> dict[str, Ask]:
    picture = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(png(1, 200, 150)).decode()}"},
    }
    looked_at = [{"role": "user", "content": [picture, {"type": "text", "text": "What is in it?"}]}]
    return {
        "greedy": _chat(temperature=0),
        "seeded": _chat(temperature=1.0, seed=7),
        "two choices": _chat(temperature=1.0, seed=11, n=2),
        "picture": _chat(temperature=0, messages=looked_at),
        "completion": _completion,
    }


async def _all(front: Stack, asked: dict[str, Ask], begun: asyncio.Event | None = None) -> dict[str, str]:
    """The answers to all requests at once. ``begun``: set once each has a text."""
    waiting = set(asked)

    def on_text(name: str) -> None:
        waiting.discard(name)
        if begun is not None and not waiting:
            begun.set()

    async with front.async_client() as client:
        answers = await asyncio.gather(*(ask(client, lambda name=name: on_text(name)) for name, ask in asked.items()))  # type: ignore[misc]
    return dict(zip(asked, answers, strict=True))


def _kill(replica: Stack) -> None:
    """As when its machine stops: all processes at once."""
    processes = [psutil.Process(replica.pid), *psutil.Process(replica.pid).children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)


@pytest.mark.faults
def test_streams_go_on_with_equal_text_when_a_replica_is_killed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    reports = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
    options = [
        ("--front-secret-file", str(secret), "--mm-hash-seed", "5", "--reports-endpoint", each) for each in reports
    ]

    async def scenario(front: Stack, victim: Stack) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        asked = _requests()
        expected = await _all(front, asked)
        picture = {"picture": asked["picture"]}
        for _ in range(40):  # until the front has heard where the picture is
            assert await _all(front, picture) == {"picture": expected["picture"]}
            if _value(_page(front), 'decisions_total{reason="held"}'):
                break
        begun = asyncio.Event()
        live = asyncio.create_task(_all(front, asked, begun))
        await begun.wait()
        _kill(victim)
        return expected, await live, await _all(front, asked)

    with (
        running(*options[0]) as victim,
        running(*options[1]) as other,
        _front(secret, (victim, other), reports) as front,
    ):
        expected, survived, after = asyncio.run(scenario(front, victim))
        assert survived == expected
        assert after == expected
        until(lambda: not other.metric("num_requests_in_flight"), timeout_s=20)
        page = _page(front)
        assert _value(page, "resumed_total") >= 1
        assert _value(page, 'http_requests_total{route="other",status="200"}') >= 15
        assert _value(page, 'decisions_total{reason="held"}') >= 1


def _page(front: Stack) -> str:
    return urllib.request.urlopen(f"{front.url}/metrics", timeout=10).read().decode()


def _value(page: str, sample: str) -> float:
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"mmserve_front:{sample} "))
