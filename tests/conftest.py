"""Settings and fixtures for all tests: signals, hypothesis, the order of parallel runs, and the check for leaks."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.fakes.leaks import leaks

# A shell starts background jobs with SIGINT ignored, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: an example may be slow because the machine is busy.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

_DURATION_ORDER = ("tests/e2e/", "tests/integration/", "tests/gpu/", "tests/unit/")
"""Folders with the longest tests first, so that a parallel run does not end with one worker in a long test."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parallel runs (``pytest -n 2 --dist loadgroup``): run the tests of a file on one worker, so that module fixtures
    are set up once, unless a test names another group (``pytest.mark.xdist_group``)."""
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        if not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))
    items.sort(key=lambda item: _duration_rank(item.nodeid))


def _duration_rank(nodeid: str) -> int:
    return next((rank for rank, folder in enumerate(_DURATION_ORDER) if nodeid.startswith(folder)), 0)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaks() as found:
        yield
    assert not found
