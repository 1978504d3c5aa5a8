"""The memory of decoding is what the header says, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MIB = 1 << 20


def test_the_peak_of_every_format_mode_and_orientation_is_within_the_estimate(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fakes.pictures.decode_peaks", str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cases = [json.loads(line) for line in output.splitlines()]
    assert len(cases) > 40
    assert {name: (peak, estimate) for name, peak, estimate in cases if peak > 1.1 * estimate} == {}
    # No estimate is so high that pictures wait for memory that nobody uses.
    assert {name: (peak, estimate) for name, peak, estimate in cases if estimate > 1.8 * peak + 4 * MIB} == {}
