"""Triton's interpreter, which computes kernels where there is no GPU, on every kind of CPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.fakes.devices.even_products import even_products
from tests.fakes.devices.nested_calls import quick_nested_calls

if find_spec("triton") is None:  # of Linux alone
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(autouse=True)
def interpreter() -> Iterator[None]:
    with even_products(), quick_nested_calls():
        yield
