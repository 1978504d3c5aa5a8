"""The give-up rule."""

from __future__ import annotations

from mmserve.supervisor.restarts import RestartLedger


def test_gives_up_after_too_many_in_the_window() -> None:
    ledger = RestartLedger(limit=2, window_s=10)
    assert ledger.allows("engine", 0)
    assert ledger.allows("engine", 1)
    assert not ledger.allows("engine", 2)


def test_old_restarts_are_forgotten_and_groups_are_apart() -> None:
    ledger = RestartLedger(limit=1, window_s=10)
    assert ledger.allows("engine", 0)
    assert ledger.allows("cache_server", 1)
    ledger.restored("engine")
    assert ledger.allows("engine", 11)
    assert not ledger.allows("engine", 12)


def test_gives_up_on_what_never_gets_ready_however_slowly_it_dies() -> None:
    ledger = RestartLedger(limit=2, window_s=10)
    assert ledger.allows("engine", 0)
    assert ledger.allows("engine", 100)
    assert not ledger.allows("engine", 200)


def test_what_was_ready_in_between_may_die_again() -> None:
    ledger = RestartLedger(limit=2, window_s=10)
    for now_s in range(0, 1000, 100):
        assert ledger.allows("engine", now_s)
        ledger.restored("engine")
