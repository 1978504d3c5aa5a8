"""Servers in several configurations, each started once and shared by the tests of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, running
from tests.fakes.pictures.cache import until

# The four cover every pair of values of (ranks, allocation path, HTTP workers); two of them overlap scheduling.
CONFIGURATIONS = {
    "tp1-v2-1worker": ("--tp", "1", "--enable-concurrent-alloc", "--http-workers", "1"),
    "tp1-v1-2workers": ("--tp", "1", "--no-enable-concurrent-alloc", "--http-workers", "2", "--overlap-scheduling"),
    "tp2-v1-1worker": ("--tp", "2", "--no-enable-concurrent-alloc", "--http-workers", "1"),
    "tp2-v2-2workers": ("--tp", "2", "--enable-concurrent-alloc", "--http-workers", "2", "--overlap-scheduling"),
}


@pytest.fixture(scope="session", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with running(*request.param, "--enable-admin") as server:
        yield server


@pytest.fixture(scope="session")
def default_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    batches = ("--batch-dir", str(tmp_path_factory.mktemp("batches")))
    with running("--enable-admin", *batches, default_memory=True) as server:
        yield server


@pytest.fixture(scope="module")
def _restarting_server() -> Iterator[Stack]:
    with running() as server:
        yield server


@pytest.fixture
def restarting_stack(_restarting_server: Stack) -> Iterator[Stack]:
    """A server for tests that kill one of its processes. After each test, waits until all processes run again.

    The supervisor gives up on a group of processes after 5 restarts in a minute (``watching/restarts.py``). The
    tests of a module share a server, and together kill each group fewer times than that.
    """
    titles = _restarting_server.titles()
    yield _restarting_server
    until(lambda: _restarting_server.titles() == titles and _restarting_server.answers, timeout_s=60)
    _restarting_server.check_all_released()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel runs: the tests that share a server form one group, so the server starts once, on one worker."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if Path(__file__).parent in item.path.parents and (server := _shared_server(item)):
            item.add_marker(pytest.mark.xdist_group(server))


def _shared_server(item: pytest.Item) -> str | None:
    fixtures = getattr(item, "fixturenames", ())
    if "family" in fixtures and hasattr(item, "callspec"):
        return f"family {item.callspec.params['family']}"
    if "stack" in fixtures and hasattr(item, "callspec"):  # the tests of the pages have a stack of their own
        return next((name for name in CONFIGURATIONS if name in item.name), None)
    return next((name for name in ("default_stack", "restarting_stack") if name in fixtures), None)
