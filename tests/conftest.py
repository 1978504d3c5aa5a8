"""For every test, wherever pytest runs."""

import signal
from collections.abc import Iterator

import pytest

from tests.fakes.leaks import leaks

# A shell's background job, for one, ignores Ctrl-C and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaks() as found:
        yield
    assert not found
