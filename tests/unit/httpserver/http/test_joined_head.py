"""The head of a response is sent together with the first part of its body."""

from __future__ import annotations

import asyncio

from mmserve.httpserver.http.joined_head import JoinedHead

HEAD, BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"{}"


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def test_head_and_first_part_are_one_write() -> None:
    transport = _Transport()
    joined = JoinedHead(transport)
    for data in (HEAD, BODY, b"more"):
        joined.write(data)
    assert transport.written == [HEAD + BODY, b"more"]


def test_a_head_is_sent_by_an_empty_part() -> None:
    transport = _Transport()
    joined = JoinedHead(transport)
    joined.write(HEAD)
    joined.write(b"")
    assert transport.written == [HEAD]


def test_the_client_is_told_at_once_to_send_its_body() -> None:
    transport = _Transport()
    joined = JoinedHead(transport)
    joined.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.written == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    joined.write(HEAD)
    joined.write(BODY)
    assert transport.written[1:] == [HEAD + BODY]


def test_a_close_sends_what_is_kept() -> None:
    transport = _Transport()
    joined = JoinedHead(transport)
    joined.write(HEAD)
    joined.close()
    assert (transport.written, joined.is_closing()) == ([HEAD], True)
