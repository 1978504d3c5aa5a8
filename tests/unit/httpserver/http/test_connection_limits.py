"""Limits of connections come from the options and from the number of files that the process may open."""

from __future__ import annotations

import resource

import pytest

from mmserve.config.config import Config
from mmserve.httpserver.http.connections import ConnectionLimits


def test_limits_follow_their_options() -> None:
    config = Config(max_connections=5, keep_alive_timeout=1, head_timeout=2, body_timeout=3, unread_timeout=4)
    assert ConnectionLimits.of(config) == ConnectionLimits(max_connections=5, idle_s=1, head_s=2, body_s=3, unread_s=4)


def test_the_defaults_are_the_same_in_both_places(monkeypatch: pytest.MonkeyPatch) -> None:
    _open_files(monkeypatch, resource.RLIM_INFINITY)
    assert ConnectionLimits.of(Config()) == ConnectionLimits()


def test_no_more_connections_than_files(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    _open_files(monkeypatch, 1024)
    assert ConnectionLimits.of(Config(max_connections=200)).max_connections == 200
    assert not caplog.text
    assert ConnectionLimits.of(Config()).max_connections == (1024 - 256) // 3
    assert "ulimit -n" in caplog.text


def _open_files(monkeypatch: pytest.MonkeyPatch, soft: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
