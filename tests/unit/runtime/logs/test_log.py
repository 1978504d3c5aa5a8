"""Log lines name the request that they are about, also those of threads that work for it."""

from __future__ import annotations

import asyncio
import json
import logging
from contextvars import copy_context
from datetime import datetime
from typing import Literal

import pytest

from mmserve.runtime.logs import log
from mmserve.runtime.worker_threads import WorkerThreads

logger = logging.getLogger("mmserve.test")


@pytest.fixture(autouse=True)
def logging_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    root, ours = logging.getLogger(), logging.getLogger("mmserve")
    for changed, name in ((root, "handlers"), (root, "level"), (ours, "level")):
        monkeypatch.setattr(changed, name, [] if name == "handlers" else getattr(changed, name))


def test_json_lines_have_the_request_the_fields_and_the_exception(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup("router", "info", "json")

    def work() -> None:
        log.request_id.set("17ab")
        logger.warning('of "a" request\n%d', 3, extra={"fields": {"ms": 1.5}})

    copy_context().run(work)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("of none")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {
        "level": "warning",
        "process": "router",
        "logger": "mmserve.test",
        "message": 'of "a" request\n3',
        "request": "17ab",
        "ms": 1.5,
    }
    assert "request" not in second
    assert second["exception"].endswith("ValueError (--log-level debug shows its message)")


@pytest.mark.parametrize("form", ["text", "json"])
def test_messages_of_exceptions_that_may_quote_a_request_are_in_no_log_above_debug(
    capsys: pytest.CaptureFixture[str], form: Literal["text", "json"]
) -> None:
    secret = "se-" + "cret"  # not as it stands in lines of code, which tracebacks show

    def fail() -> None:
        try:
            try:
                raise KeyError(f"a {secret} prompt")
            except KeyError as error:
                raise ValueError(f"a {secret} picture") from error
        except ValueError:
            members = [FileNotFoundError(2, "No such file", f"/a/{secret}/path"), RuntimeError("CUDA is gone")]
            raise ExceptionGroup(f"a {secret} group", members)  # noqa: B904 - with the context

    for level in ("info", "debug"):
        log.setup("httpserver 0", level, form)
        try:
            fail()
        except ExceptionGroup:
            logger.exception("failed")
        found = capsys.readouterr().err
        assert found.count(secret) == (4 if level == "debug" else 0), found
        names = ("KeyError", "ValueError", "ExceptionGroup", "No such file", "CUDA is gone", "in fail")
        assert all(name in found for name in names)


def test_a_line_of_a_request_names_it_once(capsys: pytest.CaptureFixture[str]) -> None:
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
