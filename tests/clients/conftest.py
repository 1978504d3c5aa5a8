"""Two servers for all clients, each in a process of its own; and what a run says of each client."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest

from tests.e2e.stack import running


@pytest.fixture(scope="session")
def server_url() -> Iterator[str]:
    """A worker whose model, ``tiny``, follows a script: it greets, calls the tools that are named, reports results."""
    with scripted_server() as url:
        yield url


@pytest.fixture(scope="session")
def packaged_url() -> Iterator[str]:
    """The whole server with the packaged model, ``llava``, which sees pictures."""
    with running() as server:
        yield server.url


@contextmanager
def scripted_server(*names: str) -> Iterator[str]:
    """The URL of a server (tests.clients.server) whose model has these further names."""
    command = [sys.executable, "-m", "tests.clients.server", *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url, "the server did not start"
            yield url
        finally:
            server.terminate()


@pytest.fixture(autouse=True)
def _named(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """Say in the report whose test this is: docs/client_matrix.py makes a table of the reports."""
    marker = request.node.get_closest_marker("client")
    assert marker is not None, "pytest.mark.client(name, distribution) says which client this tests"
    name, distribution = marker.args
    record_property("client", name)
    record_property("version", version(distribution))
    if "suite" in marker.kwargs:
        record_property("suite", marker.kwargs["suite"])
