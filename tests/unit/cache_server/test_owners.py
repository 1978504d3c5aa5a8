"""Which owners are silent, in time during which the cache server ran."""

from __future__ import annotations

from mmserve.cache_server.owners import Owners


def _run(owners: Owners, seconds: int, *beating: str, start_s: int = 0) -> list[str]:
    silent: list[str] = []
    for now_s in range(start_s, start_s + seconds):
        for owner in beating:
            owners.beat(owner)
        silent += owners.take_silent(float(now_s))
    return silent


def test_an_owner_without_heartbeats_is_silent_and_one_with_them_never() -> None:
    owners = Owners(silent_s=30.0)
    owners.connect("frozen")
    owners.connect("busy")
    assert _run(owners, 31, "busy") == []
    assert _run(owners, 2, "busy", start_s=31) == ["frozen"]
    assert _run(owners, 20, "busy", start_s=33) == [], "named once"


def test_a_pause_of_the_cache_server_itself_is_nobodys_silence() -> None:
    owners = Owners(silent_s=30.0)
    owners.connect("http-0")
    owners.take_silent(0.0)
    assert owners.take_silent(500.0) == [], "its heartbeats of that time are still unread"
    owners.beat("http-0")
    assert _run(owners, 30, start_s=501) == []


def test_connections_are_counted() -> None:
    owners = Owners()
    owners.connect("http-0")
    owners.connect("http-0")
    assert not owners.disconnect("http-0")
    assert "http-0" in owners
    assert owners.disconnect("http-0")
    assert "http-0" not in owners
    owners.beat("http-0")
    assert _run(owners, 40) == [], "an owner that is gone is not silent"


def test_a_clean_end_is_announced_once() -> None:
    owners = Owners()
    owners.unregister("http-0")
    assert owners.pop_unregistered("http-0")
    assert not owners.pop_unregistered("http-0")
