"""One server for all clients, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.clients.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url, "the server did not start"
            yield url
        finally:
            server.terminate()
