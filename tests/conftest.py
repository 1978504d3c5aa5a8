"""Settings and fixtures for all tests: signals, hypothesis, the order of parallel runs, and the check for leaks."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.fakes.processes.leaks import leaks

# Until all tests are collected: almost all that is made by then stays.
gc.disable()

# Without a GPU its kernels run in Triton's interpreter, which must be chosen before the first import of Triton.
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# A shell starts background jobs with SIGINT ignored, and their children would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadline: an example may be slow because the machine is busy. pytest's --hypothesis-profile=thorough tries more.
hypothesis.settings.register_profile("quick", deadline=None, max_examples=40)
hypothesis.settings.register_profile("mutation", deadline=None, max_examples=100)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("quick")

_DURATION_ORDER = ("tests/e2e/", "tests/integration/", "tests/gpu/", "tests/unit/")
"""Folders with the longest tests first, so that a parallel run does not end with one worker in a long test."""


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """``-n auto``: one worker more than cores, because end-to-end tests wait for servers a third of their time. Unit
    tests do not wait, and each worker needs seconds to import what they test."""
    only_unit = all(arg.startswith("tests/unit") for arg in config.args)
    return min(4, len(os.sched_getaffinity(0)) + (not only_unit))


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


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> Iterator[None]:
    """Refuse a pair of pytest and pytest-xdist in which groups have no effect: each worker would start every server.
    What was imported and collected stays, so a garbage collection need not look at ten thousand tests."""
    yield
    gc.freeze()
    gc.enable()
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest-xdist does not group tests with this pytest: install pytest<9.2")


def _duration_rank(nodeid: str) -> int:
    return next((rank for rank, folder in enumerate(_DURATION_ORDER) if nodeid.startswith(folder)), 0)


@pytest.fixture(autouse=True, scope="session")
def one_thread_of_torch() -> None:
    """In the process of the tests. With tiny tensors a second thread only spins, on a core that a server could use."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def what_stays_is_not_looked_at_again() -> Iterator[None]:
    """What a module of tests leaves, such as imports, stays: later collections of garbage pass over it. After the
    end-to-end tests a full one took more than a second, and a test of references makes several."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaks() as found:
        yield
    assert not found


@pytest.fixture(autouse=True)
def pillow_without_a_limit() -> Iterator[None]:
    """Reading a header sets Pillow's limit of pixels, which is one for the process, to that of the server."""
    yield
    if (pillow := sys.modules.get("PIL.Image")) is not None:
        pillow.MAX_IMAGE_PIXELS = None
