"""``benchmarks.vs_peers`` against a fake server: it sends the same loads as ``benchmarks.serve``."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.fakes.http.openai_server import openai_server, pictures_of

TIMEOUT_S = 120


def test_every_load_reaches_the_server_that_was_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.vs_peers", "--peers", str(tmp_path), "--server", "mmserve"]
    with openai_server() as server:
        named = f"mmserve={server.url},model=m"
        run = [*command, "--target", named, "--picture-target", named, "--repeats", "1", "--requests", "2"]
        done = subprocess.run(run, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| W")]
    assert rows[:6] == ["W1", "W2", "W3", "W4", "W5", "W6"]
    assert rows[6:] == ["W6"], "without a peer, W6 alone has a verdict"
    asked = Counter((body["max_tokens"], len(pictures_of(body)) > 0) for body in server.bodies)
    # Each client sends one request to warm up; then come the two. W6 runs W2 twice.
    assert asked[128, False] == 1 + 2
    assert asked[64, False] == 3 * (16 + 2)
    assert asked[16, False] == 8 + 2
    assert asked[16, True] >= 2 * (8 + 2) + 2 * 8
