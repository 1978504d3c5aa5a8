"""schemathesis over the server's own OpenAPI document: bodies that fit it and bodies that do not, to every operation.

No answer is a server error, has a status that the document does not name, or does not fit its schema.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("schemathesis", reason="make install installs schemathesis")
pytestmark = pytest.mark.client(
    "schemathesis",
    "schemathesis",
    suite="bodies that fit the OpenAPI document and bodies that do not, to every operation",
)
CONFIG = Path(__file__).with_name("schemathesis.toml")


def test_documented_answers(server_url: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    # The worker alone has no metrics server.
    count = _run(server_url, tmp_path, "--max-examples", "3", "--exclude-path", "/metrics")
    record_property("checks", count)


@pytest.mark.skipif(find_spec("langchain_tests") is None, reason="the whole server is started by make clients only")
def test_documented_answers_of_the_whole_server(
    packaged_url: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    record_property("checks", _run(packaged_url, tmp_path, "--max-examples", "10"))


def _run(url: str, directory: Path, *options: str) -> int:
    """The number of requests, all of which were answered as documented."""
    command = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
    command += ["--config-file", str(CONFIG), "--no-color", "run", f"{url}/openapi.json", "--seed", "1", *options]
    command += ["--continue-on-failure", "--generation-database", "none"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    (count,) = re.findall(r"(\d+) generated, \d+ passed", done.stdout)
    return int(count)
