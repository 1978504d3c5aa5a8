"""For every test, wherever pytest runs."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.fakes.leaks import leaks

# A shell's background job, for one, ignores Ctrl-C and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure of an example.
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")

_DURATION_ORDER = ("tests/e2e/", "tests/integration/", "tests/gpu/", "tests/unit/")
"""Folders with the longest tests first: at the end of a parallel run no worker is left alone with a long one."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For parallel runs (``pytest -n 2 --dist loadgroup``): the tests of a file stay together on one worker, which
    keeps its module fixtures to one set-up, unless they name another group (``pytest.mark.xdist_group``)."""
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
