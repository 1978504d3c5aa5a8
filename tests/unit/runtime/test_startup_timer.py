"""The phases of a start, measured from the start of the process."""

from __future__ import annotations

import re
import time

import psutil
import pytest

from mmserve.runtime.startup_timer import StartupTimer


def test_the_first_phase_begins_with_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    alive_s = time.time() - psutil.Process().create_time()
    monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock was set back
    timer = StartupTimer()
    timer.end("imports")
    timer.end("weights")
    shown = re.fullmatch(r"[\d.]+ s in all: imports ([\d.]+) s, weights ([\d.]+) s", str(timer))
    assert shown is not None
    assert alive_s - 1 < float(shown[1]) < alive_s + 30
    assert float(shown[2]) < 30
