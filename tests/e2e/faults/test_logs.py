"""The log of a whole server at its default level: nothing that a client wrote is in it, whatever goes wrong."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from benchmarks.load.server import serve
from tests.e2e.stack import LITTLE_MEMORY
from tests.fakes.pictures.cache import until
from tests.fakes.pictures.media import png

CANARY = "c4nary-of-this-test"
"""Part of every secret below."""
RIGHT_KEY, WRONG_KEY = f"sk-{CANARY}-right", f"sk-{CANARY}-wrong"
CHAT = "/v1/chat/completions"
PICTURE = png() + f"{CANARY} after the picture's end".encode() * 3
BROKEN = [
    f"{CANARY} no picture".encode(),
    b"\x89PNG\r\n\x1a\n" + f"{CANARY} no chunk".encode(),
    b"II" + f"{CANARY} no header of a TIFF".encode(),
    b"\xff\xd8\xff\xe1\x00\x20Exif\x00\x00" + f"{CANARY} no tags".encode(),
    PICTURE[:45] + f"{CANARY} for pixels".encode(),
]
IN_BASE64 = [base64.b64encode((" " * pad + CANARY).encode()).decode()[4:-4].rstrip("=") for pad in range(3)]
"""How the canary's middle looks in base64, at each of the three places of a byte."""


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def _data(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def _body(**fields: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": f"the word is {CANARY}"}, _image(_data(PICTURE))]
    valid = {
        "model": "llava",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 4,
        "stop": [f"{CANARY} stop"],
        "cache_salt": f"{CANARY} salt",
    }
    return valid | fields


def _malformed() -> Iterator[dict[str, Any]]:
    """Requests that fail in each step that reads a part of them."""
    wrong: list[Any] = [f"{CANARY}", [CANARY], {CANARY: CANARY}, [[CANARY]], f"{CANARY}\ud800", 10**400, None]
    fields = (
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stop",
        "cache_salt",
        "stream",
        "n",
        "seed",
        "logit_bias",
    )
    for field in (*fields, "user", "tools", "response_format", "logprobs", "stream_options", f"{CANARY}_field"):
        yield from (_body(**{field: value}) for value in wrong)
    for value in wrong:
        yield _body(messages=[{"role": value, "content": "a"}])
        yield _body(messages=[{"role": "user", "content": value}])
        yield _body(messages=[{"role": "user", "content": [value]}])
        yield _body(messages=[{"role": "user", "content": [{"type": value, CANARY: value}]}])
        yield _body(messages=[{"role": "user", "content": [{"type": "text", "text": value}]}])
        yield _body(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": value}}]}])
        yield _body(messages=[{"role": "user", "name": value, "content": CANARY}, {"role": "tool", "content": CANARY}])
    urls = [
        *(f"{scheme}://{CANARY}.invalid/a?token={CANARY}" for scheme in ("http", "https", "ftp", "file", CANARY)),
        *(f"http://{host}/?token={CANARY}" for host in ("127.0.0.1:1", "[::1", "10.0.0.1:99999", "0", "a" * 300)),
        f"http://user:{CANARY}@127.0.0.1/",
        f"file:///{CANARY}",
        f"data:image/{CANARY};base64,{CANARY}",
        f"data:{CANARY}",
        *(f"data:image/png;base64,{text}" for text in (CANARY, f"{CANARY}=", f"!{CANARY}!", IN_BASE64[0] * 50)),
        *map(_data, BROKEN),
    ]
    for url in urls:
        yield _body(messages=[{"role": "user", "content": [_image(url), _image(url + CANARY)]}])


def _raw_bodies() -> list[bytes]:
    valid = json.dumps(_body()).encode()
    return [
        valid[:-30],
        valid + CANARY.encode(),
        CANARY.encode(),
        valid.replace(b"the word", b"the \xff\xfe word"),
        valid.replace(b"the word", b"the \\ud800 word"),
        b"[" * 100_000 + CANARY.encode(),
        b'{"messages": [' + b'{"role": "' + CANARY.encode() + b'"},' * 10_000,
    ]


def _send_all(http: httpx2.Client) -> None:
    headers = {"authorization": f"Bearer {RIGHT_KEY}", "content-type": "application/json"}
    statuses = [http.post(CHAT, content=json.dumps(body), headers=headers).status_code for body in _malformed()]
    statuses += [http.post(CHAT, content=body, headers=headers).status_code for body in _raw_bodies()]
    assert {200, 400, 404, 413}.issuperset(statuses), set(statuses)
    assert statuses.count(400) > len(statuses) / 2
    for wrong in (f"Bearer {WRONG_KEY}", f"Basic {WRONG_KEY}", WRONG_KEY, f"Bearer {RIGHT_KEY} {CANARY}"):
        assert http.post(CHAT, json=_body(), headers={"authorization": wrong}).status_code == 401
    assert http.get(f"/v1/models?key={CANARY}", headers={"x-api-key": WRONG_KEY}).status_code == 401
    assert http.get(f"/v1/models?key={CANARY}", headers=headers).status_code == 200
    assert http.post(CHAT, content=CANARY, headers=headers | {"content-type": CANARY}).status_code == 415


def _answer(http: httpx2.Client, number: int, **fields: Any) -> str:
    body = _body(seed=number, **fields)
    answer = http.post(CHAT, json=body, headers={"authorization": f"Bearer {RIGHT_KEY}"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def _disturb(http: httpx2.Client, pid: int) -> None:
    """Requests are answered though their processes print their stacks and are killed meanwhile."""
    for killed in ("mmserve: model_backend rank 0", "mmserve: visualserver 0", "mmserve: cache_server"):
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(_answer, http, n, max_tokens=64, ignore_eos=True) for n in range(4)]
            children = {_title(child): child for child in psutil.Process(pid).children(recursive=True)}
            for title, child in children.items():
                if title.startswith("mmserve: "):
                    child.send_signal(signal.SIGUSR1)
            children[killed].kill()
            assert all(answer.result() is not None for answer in answers)


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return ""


@pytest.mark.faults
@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_of_any_process_holds_what_a_client_wrote(tmp_path: Path, log_format: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {RIGHT_KEY} all\n")
    keys.chmod(0o600)
    lines: list[str] = []
    options = ("--api-key-file", str(keys), "--access-log", "--trace-requests", "--log-format", log_format)
    with (
        serve("--dtype", "float32", *LITTLE_MEMORY, *options, on_line=lines.append) as target,
        httpx2.Client(base_url=target.url, timeout=120) as http,
    ):
        assert target.pid is not None
        _answer(http, 0)
        _send_all(http)
        _disturb(http, target.pid)
        until(lambda: http.get("/health").status_code == 200, timeout_s=60)
    log = "".join(lines)
    for process in ("supervisor", "httpserver 0", "starting again", "POST"):
        assert process in log
    found = [line for line in lines for secret in (CANARY, *IN_BASE64) if secret in line]
    assert not found
