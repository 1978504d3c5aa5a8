"""A worker whose machine runs out of something refuses what it cannot do with 503, and serves again afterwards."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable

import openai
import pytest

from mmserve.runtime.memory.cgroup import GroupMemory
from tests.fakes.http.http_services import StubMedia
from tests.fakes.http.http_worker import http_worker, run
from tests.integration.httpserver.limits.test_budgets import _body, _post, _say


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.ENOSPC], ids=os.strerror)
def test_a_request_that_meets_a_shortage_gets_503_and_the_next_one_is_served(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        media = StubMedia()
        async with http_worker(media=media) as worker:
            read = media.read

            async def short(*args: object) -> object:
                raise OSError(code, os.strerror(code))

            media.read = short  # type: ignore[assignment, method-assign]
            answer = await _post(worker, _body(1000))
            assert answer.status_code == 503
            assert answer.json()["error"]["message"].startswith("the server is out of")
            assert float(answer.headers["retry-after"]) > 0
            await worker.idle()
            media.read = read  # type: ignore[method-assign]
            assert (await _post(worker, _body(1000))).status_code == 200
            await worker.idle()

    run(test)
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "the server is out of" in line.getMessage()
    assert not line.exc_info, "a shortage is no bug, so there is no traceback"


def test_a_shortage_before_the_requests_task_is_503_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            with monkeypatch.context() as patch:
                patch.setattr("mmserve.httpserver.app.read_body", _out_of_memory)
                assert (await _post(worker, _body(1000))).status_code == 503
            await worker.idle()
            assert (await _post(worker, _body(1000))).status_code == 200
            await worker.idle()

    run(test)


async def _out_of_memory(*args: object) -> bytes:
    raise MemoryError


def test_images_are_refused_while_memory_is_nearly_used_up_and_text_is_not() -> None:
    class Group:
        left_nbytes = 0

        def read(self, enough: Callable[[int], int]) -> GroupMemory:
            return GroupMemory(100, self.left_nbytes)

    async def test() -> None:
        async with http_worker() as worker:
            group, shortages = Group(), worker.context.shortages
            shortages._groups = [group]  # type: ignore[list-item]
            await worker.until(lambda: shortages._images.name == "REFUSED")  # looked at with the heartbeat
            answer = await _post(worker, _body(1000))
            assert answer.status_code == 503
            assert "memory" in answer.json()["error"]["message"]
            assert float(answer.headers["retry-after"]) > 0
            await _say(worker)
            group.left_nbytes = 50
            await worker.until(lambda: shortages._images.name == "SERVED")
            assert (await _post(worker, _body(1000))).status_code == 200
            await worker.idle()

    run(test)


def test_without_descriptors_new_connections_end_and_open_ones_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            await _chat(client)  # its connection stays open
            "localhost".encode("idna")  # imports a module, which a connect below would need
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as late:
                late.setblocking(False)
                free = os.open("/dev/null", os.O_RDONLY)
                os.close(free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
                try:
                    await worker.until(lambda: worker.context.shortages._descriptors_short)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(late, ("127.0.0.1", worker.port))
                    await _chat(client)
                    assert await loop.sock_recv(late, 1) == b"", "closed, rather than left waiting"
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await _say(worker)
            await worker.idle()

    run(test)
    assert any("no file descriptors are left" in record.getMessage() for record in caplog.records)


async def _chat(client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="stub", messages=[{"role": "user", "content": "hi"}])
