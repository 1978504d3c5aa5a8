"""Step 7: memory that runs out in a tower, a rank that is killed in the middle of an answer, and a start while most of
the device's memory is taken."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from http import HTTPStatus
from typing import Any

import psutil

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped
from benchmarks.gpu.steps.server import FLAGS, needs_all

_TAKEN = 0.9
"""Part of the free memory."""
_QUESTION = "What is 2 + 3?"
_TIMEOUT_S, _TRIES = 30.0, 10


def run(checks: Checks, settings: Settings) -> None:
    checks.run("imports", lambda: needs_all(settings))
    if checks.figures("imports"):
        checks.run("memory runs out in a tower", lambda: _tower(settings))
        checks.run("rank killed in an answer", lambda: _killed(settings))
        checks.run("memory taken by others", lambda: _little_memory(settings))


def _tower(settings: Settings) -> Figures:
    from benchmarks.gpu.models.short_memory import encode_in_little_memory

    return encode_in_little_memory(settings)


def _killed(settings: Settings) -> Figures:
    """The answer after the restart is that of before."""
    from benchmarks.load.server import serve

    with serve(*FLAGS[settings.device]) as target:
        before = _ask(target.url, stream=False)
        with _open(target.url, stream=True) as reply:
            reply.readline()
            ranks = [child for child in psutil.Process(target.pid).children(recursive=True) if "rank" in child.name()]
            assert ranks, "no process is called rank"
            ranks[0].kill()
            rest = reply.read().decode()
        after = _ask(target.url, stream=False)
    assert after == before, f"{after!r} instead of {before!r}"
    return {"answer": after, "the stream ended with": rest.strip().splitlines()[-1] if rest.strip() else ""}


def _little_memory(settings: Settings) -> Figures:
    """The server starts with what is left, or says in a line what to do."""
    if settings.device == "cpu":
        raise Skipped("needs a GPU")
    import torch

    from benchmarks.load.server import serve

    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(int(_TAKEN * free), dtype=torch.uint8, device="cuda")
    taken.fill_(1)
    try:
        with serve(*FLAGS[settings.device]) as target:
            return {"answer": _ask(target.url, stream=False)}
    except RuntimeError as error:
        said = str(error)
    lines = [line for line in said.splitlines() if "memory" in line.lower()]
    assert lines, said[-300:]
    assert "Traceback" not in said, said[-300:]
    return {"said": lines[-1]}


def _ask(url: str, *, stream: bool) -> str:
    with _open(url, stream=stream) as reply:
        answer: str = json.loads(reply.read())["choices"][0]["message"]["content"]
    return answer


def _open(url: str, *, stream: bool) -> Any:
    """Asks again as the server says, while it loads or starts a rank again."""
    body = {"model": "llava", "temperature": 0, "stream": stream, "max_tokens": 200 if stream else 32}
    body |= {"messages": [{"role": "user", "content": _QUESTION}]} | ({"ignore_eos": True} if stream else {})
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    for _ in range(_TRIES):
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            said = f"{error.code}: {error.read().decode()}"
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                break
            time.sleep(float(error.headers.get("retry-after", 1)))
    raise AssertionError(said)
