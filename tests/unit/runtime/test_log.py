"""Log lines name the request that they are about, also those of threads that work for it."""

from __future__ import annotations

import asyncio
import logging

import pytest

from mmserve.runtime import log
from mmserve.runtime.worker_threads import WorkerThreads

logger = logging.getLogger("mmserve.test")


def test_a_line_of_a_request_names_it_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    root, ours = logging.getLogger(), logging.getLogger("mmserve")
    for changed, name in ((root, "handlers"), (root, "level"), (ours, "level")):
        monkeypatch.setattr(changed, name, [] if name == "handlers" else getattr(changed, name))
    log.setup("mmserve: httpserver 0", "info")

    async def work() -> None:
        log.request_id.set("17ab")
        logger.warning("the template failed")
        logger.error("request 17ab failed")
        await threads.run(lambda: logger.warning("in a thread"))

    async def run() -> None:
        await asyncio.create_task(work())
        logger.warning("of no request")

    threads = WorkerThreads("test", 1)
    asyncio.run(run())
    threads.close()
    found = [line.split("[mmserve: httpserver 0] ")[1] for line in capsys.readouterr().err.splitlines()]
    assert found == [
        "request 17ab: the template failed",
        "request 17ab failed",
        "request 17ab: in a thread",
        "of no request",
    ]
