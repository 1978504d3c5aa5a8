"""Events of the supervisor's children and signals."""

from __future__ import annotations

import selectors
import signal

import pytest

from mmserve.supervisor.watching.watch import Signalled, Watch


def test_a_signal_that_arrives_behind_the_selectors_events_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the exit of a process, which came with SIGTERM for all, would start it again."""

    class SeesNoSignal(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            found = [each for each in super().select(0) if each[0].data is not None]
            signal.raise_signal(signal.SIGTERM)
            return found

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(selectors, "DefaultSelector", SeesNoSignal)
    try:
        with Watch() as watch:
            assert watch.wait(0) == [Signalled(signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGTERM, before)
