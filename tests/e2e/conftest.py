"""One server for each way to run it, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.stack import Stack, running

# Every pair of (ranks, allocation path, HTTP workers) is covered by these four, and plans that overlap by two of them.
CONFIGURATIONS = {
    "tp1-v2-1worker": ("--tp", "1", "--enable-concurrent-alloc", "--http-workers", "1"),
    "tp1-v1-2workers": ("--tp", "1", "--no-enable-concurrent-alloc", "--http-workers", "2", "--overlap-scheduling"),
    "tp2-v1-1worker": ("--tp", "2", "--no-enable-concurrent-alloc", "--http-workers", "1"),
    "tp2-v2-2workers": ("--tp", "2", "--enable-concurrent-alloc", "--http-workers", "2", "--overlap-scheduling"),
}


@pytest.fixture(scope="module", params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with running(*request.param) as server:
        yield server


@pytest.fixture(scope="module")
def default_stack() -> Iterator[Stack]:
    with running() as server:
        yield server
