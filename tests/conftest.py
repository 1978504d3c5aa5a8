"""For every test, wherever pytest runs."""

import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.fakes.leaks import leaks

# A shell's background job, for one, ignores Ctrl-C and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# That the machine has other things to do as well is no failure of an example.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(autouse=True)
def nothing_leaks() -> Iterator[None]:
    with leaks() as found:
        yield
    assert not found
