"""An encoder's connection, with a visual server that is played here."""

from __future__ import annotations

import logging
import socket
from contextlib import closing

import pytest

from mmserve.config.node_options import Address
from mmserve.visualserver.encoder import dialer
from mmserve.visualserver.encoder.dialer import Dialer
from mmserve.visualserver.remote.frames import Hello
from mmserve.visualserver.remote.streams import Stream

HELLO = Hello(name="encoder", facts={}, credit=1, slots=1)


def test_an_error_of_one_connection_does_not_end_those_that_follow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Dialer, stream: Stream) -> None:
        raise ValueError("what nobody has thought of")

    monkeypatch.setattr(dialer, "_RETRY_S", 0.001)
    monkeypatch.setattr(Dialer, "_talk", fail)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        address = Address(*listener.getsockname())
        with closing(Dialer(address, b"s", HELLO, 5.0, lambda _: None, lambda _: None, lambda _: None)):
            for _ in range(3):
                listener.accept()[0].close()
    assert "what nobody has thought of" in caplog.text
    assert caplog.text.count("by an error of this encoder") == 1, "once a minute"


def test_a_server_that_lets_it_in_no_more_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dialer, "_RETRY_S", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as listener, caplog.at_level(logging.WARNING):
        listener.settimeout(30)
        address = Address(*listener.getsockname())
        with closing(Dialer(address, b"s", HELLO, 5.0, lambda _: None, lambda _: None, lambda _: None)):
            for _ in range(5):
                listener.accept()[0].close()
    assert len(caplog.records) == 1
