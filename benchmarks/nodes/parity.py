"""Answers of ranks and encoders on other nodes beside those of one machine: the tests that compare them, as a table."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.load import report

_TESTS = (
    (
        "two and four ranks on two nodes answer as on one, token for token; a rank killed, a cable pulled for 10 s",
        "nodes",
        "tests/e2e/machines/test_nodes.py",
    ),
    (
        "rows of an encoder behind its link equal local ones, bit for bit; failures of the link",
        "",
        "tests/integration/visualserver/test_remote.py",
    ),
    (
        "server and encoder on two nodes; the encoder's cable pulled for 10 s",
        "nodes",
        "tests/e2e/pictures/test_encoders.py",
    ),
)


def rows() -> list[report.Row]:
    """One for each file of tests."""
    return [_row(what, marked, path) for what, marked, path in _TESTS]


def _row(what: str, marked: str, path: str) -> report.Row:
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", marked, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-4000:])
    passed = "no" if done.returncode else "yes"
    return {"what": what, "tests": path, "passed": passed, "seconds": round(time.monotonic() - begun_s)}
