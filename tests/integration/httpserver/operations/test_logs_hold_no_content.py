"""Bugs of an HTTP worker whose exceptions quote the request: its log, as a server has it, shows where but not what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import httpx2
import pytest

from mmserve.httpserver import app
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.call import LeasedItem, MediaItem, MediaRef, Prompt
from mmserve.httpserver.conversation import Conversation, PromptInput, TextPart
from mmserve.messages.media import Processing
from mmserve.runtime.errors import MediaError
from mmserve.runtime.logs import log
from tests.fakes.http.http_services import StubPrompts
from tests.fakes.http.http_worker import Worker, http_worker, run

CHAT = "/v1/chat/completions"
SECRET = "c4nary"
SAYS_IT = [{"role": "user", "content": f"the word is {SECRET}"}]


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    root, ours = logging.getLogger(), logging.getLogger("mmserve")
    for changed, name in ((root, "handlers"), (root, "level"), (ours, "level")):
        monkeypatch.setattr(changed, name, [] if name == "handlers" else getattr(changed, name))


def _http(worker: Worker) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, timeout=20)


def test_a_bug_in_a_requests_task(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def build(
        self: StubPrompts, prompt: PromptInput, media: Sequence[MediaRef], leased: Sequence[LeasedItem]
    ) -> Prompt:
        assert isinstance(prompt, Conversation)
        raise ValueError(next(part.text for part in prompt.messages[0].content if isinstance(part, TextPart)))

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.post(CHAT, json={"model": "stub", "messages": SAYS_IT})).status_code == 500

    monkeypatch.setattr(StubPrompts, "build", build)
    log.setup("httpserver 0", "info")
    run(test)
    printed = capsys.readouterr().err
    assert "in build" in printed
    assert SECRET not in printed


def test_a_bug_in_a_route(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def parse(protocol: Protocol, body: bytes, *others: object) -> ParsedRequest:
        raise LookupError(body.decode())

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.post(CHAT, json={"model": "stub", "messages": SAYS_IT})).status_code == 500

    monkeypatch.setattr(app, "parse_request", parse)
    log.setup("httpserver 0", "info")
    run(test)
    printed = capsys.readouterr().err
    assert "in parse" in printed
    assert SECRET not in printed


class _Refuses:
    """Refuses all images at once."""

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        async def refuse(ref: MediaRef) -> None:
            raise MediaError(f"{ref.url} cannot be fetched", param=ref.param)

        async with asyncio.TaskGroup() as group:
            for ref in refs:
                group.create_task(refuse(ref))
        raise AssertionError("nothing is read")


def test_failures_that_the_client_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    images = [{"type": "image_url", "image_url": {"url": f"https://a.example/{n}?token={SECRET}"}} for n in range(3)]

    async def test() -> None:
        async with http_worker(media=_Refuses()) as worker, _http(worker) as http:
            refused = await http.post(CHAT, json={"model": "stub", "messages": [{"role": "user", "content": images}]})
            assert refused.status_code == 400
            assert SECRET in refused.text

    log.setup("httpserver 0", "info")
    run(test)
    printed = capsys.readouterr().err
    assert printed.count("also failed: MediaError") == 2
    assert SECRET not in printed
