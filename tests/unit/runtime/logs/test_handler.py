"""Log lines neither fail nor wait where nobody can write or read them, and go on when that has passed."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pytest

from mmserve.runtime.logs import log
from mmserve.runtime.logs.handler import LogHandler


@contextmanager
def _logger(fd: int) -> Iterator[logging.Logger]:
    handler = LogHandler(fd, wait_s=0.001)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    yield logger
    handler.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    yield read_fd, write_fd
    os.close(read_fd)
    os.close(write_fd)


def _read_bytes(fd: int) -> bytes:
    found = b""
    with suppress(BlockingIOError):
        while data := os.read(fd, 1 << 16):
            found += data
    return found


def _read_all(fd: int) -> list[str]:
    return _read_bytes(fd).decode().splitlines()


def test_lines_arrive_whole_and_in_order(pipe: tuple[int, int]) -> None:
    with _logger(pipe[1]) as logger:
        lines = ["one", "x" * 10_000, "grüße \ud800"]
        for line in lines:
            logger.error(line)
    assert _read_all(pipe[0]) == [*lines[:2], "grüße \\ud800"]


def test_nobody_waits_for_a_reader_that_has_stopped_and_it_is_told_how_many_lines_it_lost(
    pipe: tuple[int, int],
) -> None:
    lines = [f"{number:04d} {'x' * 100}" for number in range(2000)]  # more than the pipe holds
    with _logger(pipe[1]) as logger:
        for line in lines:
            logger.error(line)
        assert os.get_blocking(pipe[1]), "the mode of the pipe, which other programs use, is as it was"
        arrived = _read_all(pipe[0])
        assert arrived == lines[: len(arrived)]
        logger.error("last")
    num_lost = len(lines) - len(arrived)
    assert _read_all(pipe[0]) == [
        f"{num_lost} lines of this log could not be written and are lost: nothing reads it",
        "last",
    ]


def test_a_line_that_was_cut_is_finished_first(pipe: tuple[int, int]) -> None:
    with _logger(pipe[1]) as logger:
        for digit in "0123456789":
            logger.error(digit * 10_000)
        data = _read_bytes(pipe[0])
        logger.error("last")
        data += _read_bytes(pipe[0])
    *whole, notice, last = data.decode().splitlines()
    assert whole == [digit * 10_000 for digit in "0123456789"][: len(whole)]
    assert notice.startswith(f"{10 - len(whole)} lines ")
    assert last == "last"


def test_a_closed_pipe_is_survived() -> None:
    read_fd, write_fd = os.pipe()
    with _logger(write_fd) as logger:
        os.close(read_fd)
        logger.error("nobody")
    os.close(write_fd)


def test_a_full_disk_is_survived_and_its_reason_told_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(fd: int, data: bytes) -> int:
        return write(full_fd, data)

    write, full_fd = os.write, os.open("/dev/full", os.O_WRONLY)
    with (tmp_path / "log").open("w") as file, _logger(file.fileno()) as logger:
        logger.error("before")
        monkeypatch.setattr(os, "write", full)
        logger.error("lost")
        logger.error("lost")
        monkeypatch.undo()
        logger.error("after")
    os.close(full_fd)
    assert (tmp_path / "log").read_text().splitlines() == [
        "before",
        "2 lines of this log could not be written and are lost: No space left on device",
        "after",
    ]


def test_a_file_is_written_where_other_processes_have_stopped(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file, _logger(file.fileno()) as logger:
        os.write(file.fileno(), b"of another\n")
        logger.error("ours")
    assert (tmp_path / "log").read_text() == "of another\nours\n"


def test_a_record_that_cannot_be_formatted_does_not_fail_its_caller(
    pipe: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with _logger(pipe[1]) as logger:
        logger.error("%d", "no number")
        logger.error("next")
    assert _read_all(pipe[0]) == ["next"]
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_the_number_of_lost_lines_has_the_format_of_all_lines(
    form: Literal["text", "json"], pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(log, "_handler", lambda: LogHandler(pipe[1], wait_s=0.001))
    log.setup("router", "info", form)
    logger = logging.getLogger("mmserve.test")
    for _ in range(2000):
        logger.info("x" * 100)
    _read_all(pipe[0])
    logger.info("last")
    notice, last = _read_all(pipe[0])
    assert "last" in last
    assert "lines of this log could not be written" in notice
    if form == "json":
        assert json.loads(notice)["level"] == "warning"
    else:
        assert "WARNING [router] " in notice
    root.handlers[0].close()
