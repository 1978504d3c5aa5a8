"""The status server on a real socket: what clients cannot do to it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mmserve.ipc.status_http import Page, StatusServer
from tests.fakes.pictures.cache import until
from tests.fakes.processes.shortages import no_more_descriptors

THREADS = 4


def _serving(listener: socket.socket, server: StatusServer) -> contextlib.AbstractContextManager[None]:
    @contextlib.contextmanager
    def serving() -> Iterator[None]:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()

    return serving()


def _connect(listener: socket.socket) -> socket.socket:
    return socket.create_connection(listener.getsockname(), timeout=20)


def _get(listener: socket.socket, path: str = "/live") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(*listener.getsockname(), timeout=20)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def _threads() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_idle_connections_hold_a_bounded_number_of_threads_and_nobody_waits_for_them() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        server = StatusServer(listener, lambda path: Page(b"{}"), max_threads=THREADS)
        stack.enter_context(_serving(listener, server))
        idle = [stack.enter_context(_connect(listener)) for _ in range(3 * THREADS)]
        assert _get(listener) == (200, b"{}")
        assert _threads() <= THREADS
        assert idle[0].recv(1) == b"", "the oldest ones were closed"


def test_a_page_that_is_being_made_is_not_cut_off_for_a_later_connection() -> None:
    made, go_on = threading.Semaphore(0), threading.Event()

    def page(path: str) -> Page:
        if path == "/slow":
            made.release()
            go_on.wait(20)
        return Page(path.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        server = StatusServer(listener, page, max_threads=2)
        stack.enter_context(_serving(listener, server))
        slow = stack.enter_context(_connect(listener))
        slow.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
        assert made.acquire(timeout=20)
        for _ in range(3):
            stack.enter_context(_connect(listener))
        assert _get(listener, "/quick") == (200, b"/quick")
        go_on.set()
        assert slow.makefile("rb").read().endswith(b"/slow")


@pytest.mark.parametrize("request_line", [b"%b /live HTTP/1.0", b"GET /%b HTTP/1.0", b"GET /live %b", b"%b"])
def test_an_answer_does_not_repeat_the_request(request_line: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        stack.enter_context(_serving(listener, StatusServer(listener, lambda path: None)))
        client = stack.enter_context(_connect(listener))
        client.sendall(request_line % (b"ab" * 5000) + b"\r\n\r\n")
        answer = client.makefile("rb").read()
        assert b"error" in answer
        assert b"abab" not in answer
        assert len(answer) < 300


def test_a_thread_that_cannot_be_started_ends_one_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        server = StatusServer(listener, lambda path: Page(b"{}"), max_threads=1)
        stack.enter_context(_serving(listener, server))
        start = threading.Thread.start
        refused = threading.Event()

        def refuse(thread: threading.Thread) -> None:
            if refused.is_set():
                return start(thread)
            refused.set()
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with _connect(listener) as client:
            assert client.recv(1) == b""
        assert _get(listener) == (200, b"{}")


def test_a_page_that_cannot_be_made_is_an_error_and_the_next_one_is_not() -> None:
    pages = iter((ValueError("a bug"), Page(b"{}")))

    def page(path: str) -> Page:
        made = next(pages)
        if isinstance(made, ValueError):
            raise made
        return made

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        stack.enter_context(_serving(listener, StatusServer(listener, page)))
        status, body = _get(listener)
        assert (status, b"a bug" in body) == (500, False)
        assert _get(listener) == (200, b"{}")


def test_without_descriptors_connections_wait_and_the_server_does_not_spin(caplog: pytest.LogCaptureFixture) -> None:
    tries_s: list[float] = []

    class Counting(StatusServer):
        def get_request(self) -> tuple[Any, Any]:
            tries_s.append(time.monotonic())
            return super().get_request()

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        stack.enter_context(_serving(listener, Counting(listener, lambda path: Page(b"{}"))))
        assert _get(listener) == (200, b"{}")
        client = stack.enter_context(socket.socket())
        client.settimeout(20)
        until(lambda: not _threads())
        with no_more_descriptors():
            client.connect(listener.getsockname())
            client.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            del tries_s[:]
            until(lambda: len(tries_s) >= 4)
            tried_s = tries_s[:]
        assert len(tried_s) <= 2 + (tried_s[-1] - tried_s[0]) / 0.1, "it waits between its tries"
        assert client.makefile("rb").read().endswith(b"{}")
    assert sum("have to wait" in record.getMessage() for record in caplog.records) == 1
