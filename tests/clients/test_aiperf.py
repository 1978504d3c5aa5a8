"""aiperf's chat endpoint with streaming: every request is answered, and the counted tokens are the server's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mmserve

pytest.importorskip("aiperf", reason="make clients installs aiperf")
pytestmark = pytest.mark.client("aiperf", "aiperf")
PACKAGED = Path(mmserve.__file__).parent / "packaged" / "llava"
_REQUESTS = 12


def test_profile_streamed(packaged_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "aiperf", "profile", "--model", "llava", "--url", packaged_url]
    command += ["--endpoint-type", "chat", "--streaming", "--tokenizer", str(PACKAGED), "--ui", "none"]
    command += ["--request-count", str(_REQUESTS), "--concurrency", "2", "--random-seed", "1"]
    command += ["--isl", "20", "--osl", "8", "--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    command += ["--artifact-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.rglob("profile_export_aiperf.json")
    found = json.loads(report.read_text())
    assert found["request_count"]["avg"] == _REQUESTS
    assert not found.get("error_summary")
    assert found["output_sequence_length"]["avg"] == 8
